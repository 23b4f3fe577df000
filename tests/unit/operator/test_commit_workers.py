"""Worker processes, real ones: what a hung, crashed, greedy or curious client library can do, and what it cannot."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sinkoperator.commits import frames
from sinkoperator.commits.egress import Egress
from sinkoperator.commits.frames import Json
from sinkoperator.commits.process import Unusable, Worker, WorkerGone
from sinkruntime.coordinator.runner import NotStarted, OutOfTime
from sinkruntime.errors import SinkjobError
from tests.unit.operator.commit_world import HERE, Place, Stage, lives, opening, place, requests, spec, start, until


async def commit(worker: Worker, checkpoint: int = 1, seconds: float = 10.0) -> list[Json]:
    asked = {"tier": "committer", "requests": requests(checkpoint)}
    answers: list[Json] = await worker.call("commit", asked, seconds)
    return answers


def process_of(place: Place, at: int = -1) -> int:
    return int(place.calls("open")[at][-1])


def test_a_commit_in_a_worker_is_visible_in_the_target_and_answered(stage: Stage, tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        worker = await place.open()
        assert worker.facts == {"committer": True, "aggregated": False, "version": 1}
        (answer,) = await commit(worker)
        assert answer["answer"] == "committed"
        assert (await commit(worker))[0]["answer"] == "already_committed"
        assert place.committed() == ["committer-1-0"]
        assert process_of(place) != os.getpid()

    stage.play(tmp_path, act)


def test_a_hung_target_is_killed_after_its_time_and_stalls_no_other(
    stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(place: Place) -> None:
        hung = await place.open(job="hung")
        other = await place.open(job="other")
        place.behave("commit", "once hang")
        waiting = asyncio.create_task(commit(hung, seconds=1.0))
        side = asyncio.create_task(hung.call("clean", {"tier": "committer", "checkpoint": 0, "epoch": 1}, 5.0))
        await asyncio.wait_for(side, 5.0)  # several calls at a time in one worker
        assert (await commit(other, 2))[0]["answer"] == "committed"
        with pytest.raises(OutOfTime):
            await waiting
        await until(lambda: not lives(process_of(place, 0)))
        assert lives(process_of(place, 1))
        with pytest.raises(NotStarted):
            await commit(hung)

    stage.play(tmp_path, act)
    assert any(
        "team/hung, sink a" in record.getMessage() and "killed" in record.getMessage() for record in caplog.records
    )


@pytest.mark.parametrize(
    ("how", "said"),
    [("crash", "SIGSEGV"), ("hog", "memory limit"), ("garble", "nonsense")],
)
def test_a_worker_that_dies_makes_its_calls_unknown_and_is_named_in_the_log(
    stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str, said: str
) -> None:
    async def act(place: Place) -> None:
        worker = await place.open(job="broken")
        other = await place.open(job="other")
        place.behave("commit", f"once {how}")
        with pytest.raises(WorkerGone, match=said):
            await commit(worker)
        assert (await commit(other, 2))[0]["answer"] == "committed"
        await until(lambda: not lives(process_of(place, 0)))

    stage.play(tmp_path, act)
    (record,) = [record for record in caplog.records if "is gone" in record.getMessage()]
    assert "job team/broken, sink a" in record.getMessage()


def test_what_a_sink_raises_arrives_with_its_name_and_the_worker_lives_on(stage: Stage, tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        worker = await place.open()
        place.behave("commit", "once raise")
        with pytest.raises(SinkjobError) as caught:
            await commit(worker)
        assert (caught.value.reason, caught.value.message) == (
            "ConnectionResetError", "ConnectionResetError: the target hung up",
        )  # fmt: skip
        assert (await commit(worker))[0]["answer"] == "committed"

    stage.play(tmp_path, act)


def test_a_committable_that_cannot_be_read_is_no_use_to_try_again(stage: Stage, tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        worker = await place.open()
        pairs = [[[1, 1, 0, 1, 0], [9, "e30="]]]
        with pytest.raises(Unusable, match="version 9"):
            await worker.call("pre_commit", {"pairs": pairs}, 5.0)

    stage.play(tmp_path, act)


def test_the_operators_own_credentials_never_reach_a_worker(tmp_path: Path) -> None:
    own = {
        "PATH": os.environ["PATH"], "AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "mine", "AWS_PROFILE": "mine",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/mine", "AWS_ROLE_ARN": "mine", "GOOGLE_APPLICATION_CREDENTIALS": "/mine",
        "AZURE_CLIENT_ID": "mine", "KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBECONFIG": "/mine", "HOME": "/mine",
        "SINKJOB_DRIVER_IMAGE": "mine",
    }  # fmt: skip

    async def act(place: Place) -> None:
        worker = await place.open()
        place.behave("commit", "look around")
        await commit(worker)

    async def scene() -> None:
        nursery = await start(tmp_path, own)
        try:
            async with place(tmp_path, nursery) as there:
                await act(there)
        finally:
            await nursery.stop()

    asyncio.run(scene())
    found = json.loads((tmp_path / "target" / "environment.json").read_text())
    assert "mine" not in {value.strip("/") for value in found.values()}
    assert not [name for name in found if name.startswith(("KUBE", "GOOGLE_", "AZURE_"))]
    assert {name: value for name, value in found.items() if name.startswith("AWS_")} == {
        "AWS_EC2_METADATA_DISABLED": "true"
    }


def test_code_that_the_operator_does_not_have_is_refused_with_what_to_do(stage: Stage, tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        manifest = spec(place.folder)
        manifest["sinks"][0]["type"] = "os:PathLike"
        with pytest.raises(SinkjobError, match=r"spec\.sinks\[0\]\.type.*commit\.runOn: Job"):
            await place.open(opening(manifest))

    stage.play(tmp_path, act)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tiers": "refused"}, "options.folder: there is no such table"),
        ({"colour": "red"}, "spec.sinks[0].options.colour"),
    ],
)
def test_bad_options_are_told_by_their_path_and_free_the_slot(
    stage: Stage, tmp_path: Path, options: Json, said: str
) -> None:
    async def act(place: Place) -> None:
        for _ in range(3):
            with pytest.raises(SinkjobError) as caught:
                await place.open(opening(spec(place.folder, **options)))
            assert said in caught.value.message
        assert place.pool.workers == ()

    stage.play(tmp_path, act, workers=1)


def test_a_sink_that_is_not_in_the_revision_is_no_use_to_try_again(stage: Stage, tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        with pytest.raises(Unusable, match="no sink b"):
            await place.open(opening(spec(place.folder), "b"))

    stage.play(tmp_path, act)


@pytest.mark.parametrize("end", ["", "\n"], ids=["as it is", "with the line end of a file"])
def test_secrets_are_hidden_in_answers_and_in_what_the_worker_prints(
    stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    caplog.set_level(logging.INFO)

    async def act(place: Place) -> None:
        manifest = spec(place.folder)
        manifest["sinks"][0]["optionsFrom"] = [{"secretRef": {"name": "login"}}]
        (place.folder / "password").write_text("another one")
        worker = await place.open(opening(manifest, secrets={"login": {"password": f"open sesame{end}"}}), job="shy")
        (answer,) = await commit(worker)
        assert (answer["answer"], answer["message"]) == ("retry_later", "*** is not the password")
        await until(lambda: "client: password ***" in caplog.text)

    stage.play(tmp_path, act)
    assert "job team/shy, sink a: the password *** was turned down" in caplog.text
    assert "open sesame" not in caplog.text


def test_a_secret_of_several_lines_is_hidden_line_by_line(
    stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def act(place: Place) -> None:
        manifest = spec(place.folder)
        manifest["sinks"][0]["optionsFrom"] = [{"secretRef": {"name": "login"}}]
        (place.folder / "password").write_text("another one")
        key = "-----BEGIN KEY-----\r\nopen sesame\r\n-----END KEY-----\n"
        await commit(await place.open(opening(manifest, secrets={"login": {"password": key}}), job="shy"))
        await until(lambda: "was turned down" in caplog.text)

    stage.play(tmp_path, act)
    assert "open sesame" not in caplog.text


def test_the_jobs_token_is_in_a_file_that_only_the_worker_can_read_and_is_renewed(stage: Stage, tmp_path: Path) -> None:
    def identity(token: str) -> Json:
        environment = {"AWS_WEB_IDENTITY_TOKEN_FILE": "{folder}/token", "AWS_ROLE_ARN": "arn:job"}
        return {"files": {"token": token}, "environment": environment, "renew_seconds": 1800}

    async def act(place: Place) -> None:
        worker = await place.open(opening(spec(place.folder), identity=identity("first")))
        place.behave("commit", "open token")
        for token in ("first", "second"):
            await worker.call("identity", identity(token), 5.0)
            await commit(worker)
            assert json.loads((place.folder / "token.json").read_text()) == {"token": token, "mode": "0o600"}

    stage.play(tmp_path, act)


def test_a_worker_reaches_no_forbidden_host_and_the_refusal_names_host_and_setting(
    stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def act(place: Place) -> None:
        listener = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        (place.folder / "where").write_text(f"http://localhost:{port}/")
        place.behave("commit", "reach out")
        refused = await place.open()
        await commit(refused)
        said = (place.folder / "reached").read_text()
        assert "127.0.0.1" in said or "::1" in said
        assert "--egress-allow" in said
        opened = await place.open(opening(spec(place.folder), egress=Egress.parse(["127.0.0.0/8", "::1/128"]).texts()))
        await commit(opened, 2)
        assert "--egress-allow" not in (place.folder / "reached").read_text()
        listener.close()
        await listener.wait_closed()
        await until(lambda: "EgressRefused" in caplog.text)  # output has a way of its own

    stage.play(tmp_path, act)


def test_a_worker_opens_neither_the_operators_own_token_nor_a_socket_of_this_machine(
    stage: Stage, tmp_path: Path
) -> None:
    async def act(place: Place) -> None:
        place.behave("commit", "pry")
        await commit(await place.open())

    stage.play(tmp_path, act)
    found = json.loads((tmp_path / "target" / "pried.json").read_text())
    assert set(found.values()) == {"PermissionError"}
    assert len(found) == 3


def test_a_url_in_an_option_is_looked_at_before_the_sink_is_opened(stage: Stage, tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        with pytest.raises(SinkjobError) as caught:
            await place.open(opening(spec(place.folder, url="http://169.254.169.254/latest")))
        assert caught.value.reason == "EgressRefused"
        assert "options.url: 169.254.169.254 may not be reached" in caught.value.message
        assert place.calls("open") == []

    stage.play(tmp_path, act)


def test_a_worker_and_what_it_started_end_when_the_operator_is_killed(tmp_path: Path) -> None:
    script = f"""
import asyncio, pathlib, sys
sys.path.insert(0, {str(HERE.parents[2])!r})
from tests.unit.operator.commit_world import place
async def main():
    async with place(pathlib.Path({str(tmp_path)!r})) as there:
        await there.open()
        print(there.nursery.process_id, there.calls("open")[0][-1], flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as operator:
        assert operator.stdout is not None
        processes = [int(text) for text in operator.stdout.readline().split()]
        assert len(processes) == 2
        assert all(lives(process) for process in processes)
        operator.kill()
    asyncio.run(until(lambda: not any(lives(process) for process in processes)))


def test_when_the_clean_parent_dies_its_workers_die_and_the_next_one_gets_another_parent(
    stage: Stage, tmp_path: Path
) -> None:
    async def act(place: Place) -> None:
        worker = await place.open()
        place.behave("commit", "once hang")
        waiting = asyncio.create_task(commit(worker))
        await until(lambda: bool(place.calls("commit")))
        first = place.nursery.process_id
        assert first is not None
        os.kill(first, signal.SIGKILL)
        with pytest.raises(WorkerGone):
            await waiting
        await until(lambda: not lives(process_of(place)))
        again = await place.open()
        assert (await commit(again))[0]["answer"] == "committed"
        assert place.nursery.process_id not in (None, first)

    stage.play(tmp_path, act)


def test_a_worker_is_a_group_of_its_own_behind_the_operator_and_leaves_nothing_behind(
    stage: Stage, tmp_path: Path
) -> None:
    async def act(place: Place) -> None:
        worker = await place.open()
        process = process_of(place)
        assert os.getpgid(process) == process
        assert os.getpriority(os.PRIO_PROCESS, process) > os.getpriority(os.PRIO_PROCESS, 0)
        with open(f"/proc/{process}/cmdline") as line:
            assert "sinkoperator.commits.zygote" in line.read()
        private = Path(os.readlink(f"/proc/{process}/cwd"))
        assert private.stat().st_mode & 0o777 == 0o700
        await worker.close(5.0)
        await until(lambda: not lives(process) and not private.exists())
        assert place.calls("close") != []

    stage.play(tmp_path, act)


def test_temporary_files_of_a_library_go_with_the_worker_also_if_it_is_killed(stage: Stage, tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        place.behave("commit", "litter")
        worker = await place.open()
        await commit(worker)
        left = Path((place.folder / "litter").read_text())
        try:
            assert left.parent == Path(os.readlink(f"/proc/{process_of(place)}/cwd"))
            worker.kill("for this test")
            await until(lambda: not left.exists())
        finally:
            left.unlink(missing_ok=True)

    stage.play(tmp_path, act)


def test_the_clean_parent_has_one_thread(stage: Stage, tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        await place.open()
        assert len(os.listdir(f"/proc/{place.nursery.process_id}/task")) == 1

    stage.play(tmp_path, act)


@pytest.mark.parametrize(
    "nonsense", [[], "x", {"a": "1"}, {"a": None}, {"a": float("inf")}, {str(n): 1 for n in range(17)}]
)
def test_gauges_that_are_no_numbers_or_too_many_are_nonsense(nonsense: object) -> None:
    with pytest.raises(frames.BadFrame):
        frames.gauges_from(nonsense)


def test_gauges_are_numbers_by_name_or_none_at_all() -> None:
    assert frames.gauges_from({"a": 1, "b": 0.5}) == {"a": 1.0, "b": 0.5}
    assert frames.gauges_from(None) is None
