"""Coordinators with their sinks in worker processes: from a decision to a commit, and through every failure between."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from sinkruntime.errors import LedgerCorrupt
from sinkruntime.ledger.change import change
from sinkruntime.protocol.events import RaiseToken
from sinkruntime.protocol.ledger import CheckpointState, Ledger, PartState
from tests.protocol.build import part_of, running
from tests.unit.operator.commit_jobs import KEY, Jobs, play, settled
from tests.unit.operator.commit_world import Stage, lives, until


def test_a_decision_is_committed_by_a_worker_and_settled(stage: Stage, tmp_path: Path) -> None:
    async def act(jobs: Jobs) -> None:
        await jobs.begin(jobs.charge(jobs.manifest()))
        await jobs.decide(1, ['{"n":1}', '{"n":2}'])
        ledger = await jobs.until(settled)
        assert ledger.sinks["a"].committed == 1
        assert jobs.place.committed() == ["committer-1-0", "committer-1-1"]
        assert (jobs.place.folder / "committer-1-1").read_text() == '{"n": 2}'
        assert jobs.seen[-1].token == ledger.token
        ((key, metrics),) = jobs.manager.metrics()
        assert (key, metrics.get("commit_successes", "a")) == (KEY, 1)
        assert metrics.get("prepared_transactions", "a") == 2, "what the sink gauges when it cleans up"
        assert ("of_its_own", "a") not in metrics.values, "a worker does not make up series"

    play(stage, tmp_path, act)


@pytest.mark.parametrize(
    ("tiers", "visible"),
    [("aggregated", ["aggregated-1-0"]), ("both", ["aggregated-1-0", "committer-1-0", "committer-1-1"])],
)
def test_every_kind_of_committer_works_through_a_worker(
    stage: Stage, tmp_path: Path, tiers: str, visible: list[str]
) -> None:
    async def act(jobs: Jobs) -> None:
        await jobs.begin(jobs.charge(jobs.manifest(tiers=tiers)))
        await jobs.decide(1, ['{"n":1}', '{"n":2}'])
        await jobs.until(settled)
        assert jobs.place.committed() == visible

    play(stage, tmp_path, act)


@pytest.mark.parametrize("how", ["hang", "crash", "hog"])
@pytest.mark.parametrize("moment", ["commit", "committed"])
def test_a_commit_whose_worker_is_lost_is_probed_and_lands_once(
    stage: Stage, tmp_path: Path, how: str, moment: str
) -> None:
    """Lost before the target has it, or after: in either case unknown."""

    async def act(jobs: Jobs) -> None:
        jobs.place.behave(moment, f"once {how}")
        await jobs.begin(jobs.charge(jobs.manifest()))
        await jobs.decide(1)
        await jobs.until(settled)
        assert jobs.place.committed() == ["committer-1-0"]
        assert len(jobs.place.calls("probe")) == 1
        assert len(jobs.place.calls("commit")) == (2 if moment == "commit" else 1)
        assert len({call[-1] for call in jobs.place.calls("open")}) == 2

    play(stage, tmp_path, act)


def test_a_committable_that_the_sink_updates_is_kept_and_committed_in_its_new_form(
    stage: Stage, tmp_path: Path
) -> None:
    async def act(jobs: Jobs) -> None:
        await jobs.begin(jobs.charge(jobs.manifest()))
        await jobs.decide(1, ['{"n":"update"}', '{"n":2}'])
        await jobs.until(settled)
        assert (jobs.place.folder / "committer-1-0").read_text() == '{"n": "updated"}'

    play(stage, tmp_path, act)


def test_a_committable_of_an_unknown_version_is_held(stage: Stage, tmp_path: Path) -> None:
    async def act(jobs: Jobs) -> None:
        await jobs.begin(jobs.charge(jobs.manifest()))
        await jobs.decide(1, ["no json"])
        ledger = await jobs.until(lambda ledger: part_of(ledger, 1, "a").state is PartState.HELD)
        assert part_of(ledger, 1, "a").reason == "JSONDecodeError"

    play(stage, tmp_path, act)


def test_a_missing_secret_is_told_in_the_ledger_and_the_commit_goes_on_when_it_is_there(
    stage: Stage, tmp_path: Path
) -> None:
    async def act(jobs: Jobs) -> None:
        manifest = jobs.manifest()
        manifest["sinks"][0]["optionsFrom"] = [{"secretRef": {"name": "login"}}]
        await jobs.begin(jobs.charge(manifest))
        await jobs.decide(1)
        ledger = await jobs.until(lambda ledger: part_of(ledger, 1, "a").reason == "SecretNotFound")
        part = part_of(ledger, 1, "a")
        assert (part.state, part.message) == (PartState.PENDING, "there is no Secret `login` in the namespace team")
        trouble = jobs.manager.trouble(KEY)
        assert trouble is not None
        assert trouble.reason == "SecretNotFound"
        jobs.cluster.secret("login", password="open sesame")
        # Recovery, which wants the sink too, may be tried again later than the commit.
        await jobs.until(lambda ledger: settled(ledger) and jobs.manager.trouble(KEY) is None)

    play(stage, tmp_path, act)


def test_a_rotated_secret_is_read_again_and_used_in_a_fresh_worker(stage: Stage, tmp_path: Path) -> None:
    async def act(jobs: Jobs) -> None:
        manifest = jobs.manifest()
        manifest["sinks"][0]["optionsFrom"] = [{"secretRef": {"name": "login"}}]
        jobs.cluster.secret("login", password="the first one")
        (jobs.place.folder / "password").write_text("the second one")
        await jobs.begin(jobs.charge(manifest))
        await jobs.decide(1)
        ledger = await jobs.until(lambda ledger: part_of(ledger, 1, "a").reason == "PermissionDenied")
        assert part_of(ledger, 1, "a").message == "*** is not the password"
        jobs.cluster.secret("login", password="the second one")
        await jobs.until(settled)
        assert len({call[-1] for call in jobs.place.calls("open")}) >= 2

    play(stage, tmp_path, act)


def test_nothing_is_issued_once_the_lease_is_lost(stage: Stage, tmp_path: Path) -> None:
    async def act(jobs: Jobs) -> None:
        await jobs.begin(jobs.charge(jobs.manifest()))
        await jobs.decide(1)
        await jobs.until(settled)
        before = len(jobs.place.calls("commit"))
        jobs.held = False
        await jobs.decide(2)
        await asyncio.sleep(0.3)
        assert len(jobs.place.calls("commit")) == before
        assert part_of(await jobs.ledger(), 2, "a").state is PartState.PENDING
        await jobs.manager.drop(KEY)
        assert not jobs.manager.runs(KEY)
        assert jobs.place.pool.workers == ()

    play(stage, tmp_path, act)


def test_dropping_a_job_kills_what_is_under_way(stage: Stage, tmp_path: Path) -> None:
    async def act(jobs: Jobs) -> None:
        jobs.place.behave("commit", "hang")
        await jobs.begin(jobs.charge(jobs.manifest()))
        await jobs.decide(1)
        await until(lambda: bool(jobs.place.calls("commit")))
        process = int(jobs.place.calls("commit")[0][-1])
        await asyncio.wait_for(jobs.manager.drop(KEY), 5.0)
        await until(lambda: not lives(process))

    play(stage, tmp_path, act)


def test_another_intent_replaces_the_coordinator_in_order_and_the_same_one_does_not(
    stage: Stage, tmp_path: Path
) -> None:
    async def act(jobs: Jobs) -> None:
        charge = jobs.charge(jobs.manifest())
        await jobs.begin(charge)
        jobs.manager.run(KEY, replace(charge, gone_below=7))
        await asyncio.sleep(0.1)
        assert (await jobs.ledger()).token == 1
        await jobs.decide(1)
        jobs.manager.run(KEY, replace(charge, intent="rev-1/1/y"))
        assert not jobs.manager.begun(KEY)  # a driver that starts now would look at what an old word said
        ledger = await jobs.until(lambda ledger: settled(ledger) and jobs.manager.begun(KEY))
        assert ledger.token == 2
        assert jobs.place.committed() == ["committer-1-0"]

    play(stage, tmp_path, act)


def test_a_person_s_word_reaches_the_running_coordinator(stage: Stage, tmp_path: Path) -> None:
    async def act(jobs: Jobs) -> None:
        manifest = jobs.manifest()
        await jobs.begin(jobs.charge(manifest))
        await jobs.decide(1, ['{"n":"refuse"}'])
        await jobs.until(lambda ledger: part_of(ledger, 1, "a").state is PartState.HELD)
        word = {**manifest, "recovery": {"nonce": 1, "accept": ["AbandonPending"]}}
        jobs.manager.run(KEY, jobs.charge(word, intent="rev-1/0/y"))
        ledger = await jobs.until(lambda ledger: bool(ledger.aborts))
        assert (ledger.aborts[0].first, ledger.aborts[0].who) == (1, "SinkJob team/flights")

    play(stage, tmp_path, act)


def test_an_abort_is_put_on_record_by_the_coordinator_in_its_tenure_only(stage: Stage, tmp_path: Path) -> None:
    async def act(jobs: Jobs) -> None:
        jobs.place.behave("commit", "raise")
        assert not await jobs.manager.abort(KEY, 1, "operator", "deletionPolicy: Abort")
        await jobs.begin(jobs.charge(jobs.manifest()))
        await jobs.decide(1)
        assert await jobs.manager.abort(KEY, 1, "operator", "deletionPolicy: Abort")
        assert await jobs.manager.abort(KEY, 1, "operator", "deletionPolicy: Abort")
        record = (await jobs.ledger()).record(1)
        assert record is not None
        assert (record.state, record.who, record.why) == (
            CheckpointState.ABORTING, "operator", "deletionPolicy: Abort",
        )  # fmt: skip

    play(stage, tmp_path, act)


def test_one_that_was_overtaken_begins_again_only_while_the_shard_is_held(stage: Stage, tmp_path: Path) -> None:
    async def overtake(jobs: Jobs) -> Ledger:
        return (await change(jobs.store, _raise, jobs.environment, 5.0)).ledger

    async def act(jobs: Jobs) -> None:
        await jobs.begin(jobs.charge(jobs.manifest()))
        await overtake(jobs)
        await jobs.until(lambda ledger: ledger.token == 3 and ledger.holder != "another")
        jobs.held = False
        await overtake(jobs)
        await until(lambda: not jobs.manager.runs(KEY))
        assert (await jobs.ledger()).holder == "another"

    play(stage, tmp_path, act)


def _raise(ledger: Ledger) -> RaiseToken | None:
    return None if ledger.holder == "another" else RaiseToken(ledger.token + 1, "another")


def test_a_ledger_that_is_lost_is_told_and_another_tenure_begins_when_it_is_back(stage: Stage, tmp_path: Path) -> None:
    async def act(jobs: Jobs) -> None:
        await jobs.begin(jobs.charge(jobs.manifest()))
        text, jobs.store.text = jobs.store.text, None
        jobs.store.version += 1
        for waiter in list(jobs.store._waiters):
            waiter.set_result(None)
        await until(lambda: isinstance(jobs.manager.trouble(KEY), LedgerCorrupt))
        assert not jobs.manager.begun(KEY)
        jobs.store.text = text
        await jobs.until_begun()
        assert jobs.manager.trouble(KEY) is None

    play(stage, tmp_path, act)


def test_stopping_waits_for_what_runs_and_tells_it(stage: Stage, tmp_path: Path) -> None:
    async def act(jobs: Jobs) -> None:
        await jobs.begin(jobs.charge(jobs.manifest()))
        await jobs.decide(1)
        await until(lambda: bool(jobs.place.calls("commit")))
        await jobs.manager.stop(KEY)
        assert not jobs.manager.runs(KEY)
        record = (await jobs.ledger()).record(1)
        assert record is None or part_of(await jobs.ledger(), 1, "a").state in (PartState.COMMITTED, PartState.CLEANED)
        assert jobs.place.pool.workers == ()

    play(stage, tmp_path, act)


def test_stopping_a_hung_one_takes_its_time_only(stage: Stage, tmp_path: Path) -> None:
    async def act(jobs: Jobs) -> None:
        jobs.place.behave("recover", "hang")
        manifest = jobs.manifest()
        manifest["commit"] = {"timeout": "60s"}
        await jobs.begin(jobs.charge(manifest))
        jobs.place.behave("commit", "hang")
        await jobs.decide(1)
        await until(lambda: bool(jobs.place.calls("commit")))
        await asyncio.wait_for(jobs.manager.stop(KEY, patience_seconds=0.5), 8.0)
        assert not jobs.manager.runs(KEY)

    play(stage, tmp_path, act)


def test_a_pending_checkpoint_is_committed_with_the_sinks_of_its_own_revision(stage: Stage, tmp_path: Path) -> None:
    async def act(jobs: Jobs) -> None:
        old = tmp_path / "old"
        old.mkdir()
        former = jobs.manifest()
        former["sinks"][0]["options"]["folder"] = str(old)
        jobs.charge(former, revision="rev-0")
        await jobs.begin(jobs.charge(jobs.manifest(), "rev-1"))
        await jobs.decide(1, revision="rev-0")
        await jobs.decide(2, revision="rev-1")
        await jobs.until(settled)
        assert [file.name for file in old.glob("committer-*")] == ["committer-1-0"]
        assert jobs.place.committed() == ["committer-2-0"]

    play(stage, tmp_path, act)


def test_a_revision_without_the_sink_is_refused(stage: Stage, tmp_path: Path) -> None:
    async def act(jobs: Jobs) -> None:
        manifest = jobs.manifest()
        other = jobs.manifest()
        other["sinks"][0]["name"] = "b"
        jobs.charge(other, revision="rev-0")
        await jobs.begin(jobs.charge(manifest))
        await jobs.decide(1, revision="rev-0")
        ledger = await jobs.until(lambda ledger: part_of(ledger, 1, "a").state is PartState.HELD)
        assert part_of(ledger, 1, "a").reason == "UnknownSink"

    play(stage, tmp_path, act)


def test_a_lost_revision_is_told_and_tried_again(stage: Stage, tmp_path: Path) -> None:
    async def act(jobs: Jobs) -> None:
        await jobs.begin(jobs.charge(jobs.manifest()))
        await jobs.decide(1, revision="rev-0")
        await jobs.until(lambda ledger: part_of(ledger, 1, "a").reason == "RevisionLost")
        jobs.charge(jobs.manifest(), revision="rev-0")
        await jobs.until(settled)

    play(stage, tmp_path, act)


def test_commits_go_on_after_the_clean_parent_was_killed(stage: Stage, tmp_path: Path) -> None:
    async def act(jobs: Jobs) -> None:
        await jobs.begin(jobs.charge(jobs.manifest()))
        await jobs.decide(1)
        await jobs.until(settled)
        process = jobs.place.nursery.process_id
        assert process is not None
        os.kill(process, signal.SIGKILL)
        await jobs.decide(2)
        await jobs.until(settled)
        assert jobs.place.committed() == ["committer-1-0", "committer-2-0"]

    play(stage, tmp_path, act)


def test_many_committables_go_through_one_worker_in_chunks(stage: Stage, tmp_path: Path) -> None:
    async def act(jobs: Jobs) -> None:
        await jobs.begin(jobs.charge(jobs.manifest()))
        filler = "x" * 500
        await jobs.decide(1, [f'{{"n":{number},"x":"{filler}"}}' for number in range(300)])
        await jobs.until(settled)
        assert len(jobs.place.committed()) == 300
        assert len(jobs.place.calls("open")) == 1
        assert len(jobs.place.calls("commit")) == 5

    play(stage, tmp_path, act)


def test_more_jobs_than_workers_all_commit_everything_once(stage: Stage, tmp_path: Path) -> None:
    async def act(jobs: Jobs) -> None:
        others = [Jobs(jobs.place, jobs.manager, jobs.cluster, key=("team", f"job-{at}")) for at in range(8)]
        by_key = {other.key: other for other in others}
        jobs.store_of = lambda key: by_key[key].store  # type: ignore[method-assign]
        for other in others:
            await other.store.create(running(token=0))
            manifest = jobs.manifest()
            folder = tmp_path / other.key[1]
            folder.mkdir()
            manifest["sinks"][0]["options"]["folder"] = str(folder)
            jobs.manager.run(other.key, other.charge(manifest))
        for number in (1, 2, 3):
            await asyncio.gather(*(other.decide(number) for other in others))
        for other in others:
            await other.until(settled)
            visible = sorted(file.name for file in (tmp_path / other.key[1]).glob("committer-*"))
            assert visible == ["committer-1-0", "committer-2-0", "committer-3-0"]
        assert len(jobs.place.pool.workers) <= 2

    play(stage, tmp_path, act, workers=3, workers_per_namespace=2)


def test_the_jobs_token_is_renewed_in_the_worker_that_is_open(stage: Stage, tmp_path: Path) -> None:
    async def act(jobs: Jobs) -> None:
        role = {"eks.amazonaws.com/role-arn": "arn"}
        jobs.cluster.put("ServiceAccount", "default", {"metadata": {"annotations": role}})
        jobs.place.behave("commit", "open token")
        await jobs.begin(jobs.charge(jobs.manifest()))
        for number, tokens in ((1, 1), (2, 1), (3, 2)):
            if number == 3:
                jobs.clock.shift_seconds = 301.0  # half of the 600 s of a token that does not say how long it lives
            await jobs.decide(number)
            await jobs.until(settled)
            assert jobs.cluster.tokens == tokens
        assert len(jobs.place.calls("open")) == 1

    play(stage, tmp_path, act)
