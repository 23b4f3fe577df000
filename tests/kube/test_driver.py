"""`sinkjob driver` and `sinkjob commit` as pods run them: real processes, a real API server, Spark on this machine."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sinkruntime.protocol.ledger import Authority, Ledger
from tests.kube.control_plane import ControlPlane
from tests.kube.driver_pod import NAME, WAIT_SECONDS, Place, operator_at

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

STREAMING = {"type": "ProcessingTime", "interval": "100ms"}
AWAY_SECONDS = 8.0


@pytest.fixture
def place(tmp_path: Path, namespace: str, kubeconfig: Path) -> Iterator[Place]:
    """A job with two input files and a ledger, and nobody who commits yet."""
    with operator_at(tmp_path, namespace, kubeconfig) as made:
        made.write_job()
        made.add_file(1)
        made.add_file(2)
        made.create_ledger()
        yield made


def committed(ledger: Ledger, sink: str, number: int) -> bool:
    """Whether the ledger says that the sink is committed up to that checkpoint."""
    return sink in ledger.sinks and ledger.sinks[sink].committed >= number


def test_a_driver_runs_its_source_to_the_end_and_says_so(place: Place) -> None:
    place.coordinate()
    epoch = place.raise_epoch()
    assert place.run(epoch) == 0, place.log(epoch)
    place.until(lambda ledger: not ledger.pending)
    assert place.whole(1, 2)
    assert place.last_word(epoch) == {
        "reason": "Completed", "message": "the source is done", "advice": "", "path": "",
    }  # fmt: skip
    ours = [line for line in place.log(epoch) if line.get("logger", "").startswith("sinkruntime")]
    assert all((line["job"], line["epoch"]) == (f"{place.namespace}/{NAME}", epoch) for line in ours)
    assert {line["checkpoint"] for line in ours if "is decided" in line["message"]} == {1, 2}
    assert place.ledger().claim.startswith(f"{NAME}-driver-{epoch}/0b1c/")


def test_a_killed_driver_is_followed_by_the_next_epoch_and_no_row_is_lost_or_doubled(place: Place) -> None:
    place.coordinate()
    first = place.raise_epoch()
    place.write_job(trigger=STREAMING)
    tree = place.start(first)
    try:
        place.until(lambda ledger: ledger.decided >= 1)
        place.add_file(3)
        tree.kill()
    finally:
        tree.kill()
    place.write_job()
    second = place.raise_epoch()
    assert place.run(second) == 0, place.log(second)
    place.until(lambda ledger: not ledger.pending)
    assert place.whole(1, 2, 3)
    assert place.ledger().epoch == second == first + 1


def test_sigterm_ends_a_driver_at_a_checkpoint_with_nothing_of_its_own_pending(place: Place) -> None:
    place.write_job(trigger=STREAMING, commit={"maxPending": 16})
    epoch = place.raise_epoch()
    place.coordinate()
    place.until(lambda ledger: ledger.recovered.get(Authority.TOKEN) == epoch)
    tree = place.start(epoch)
    try:
        place.until(lambda ledger: ledger.decided >= 1)
        place.add_file(3)
        os.kill(tree.leader.pid, signal.SIGTERM)
        assert tree.leader.wait(WAIT_SECONDS) == 0, place.log(epoch)
    finally:
        tree.kill()
    ledger = place.ledger()
    assert committed(ledger, "lake", ledger.decided)
    assert place.last_word(epoch)["reason"] == "Stopped"
    place.write_job()
    following = place.raise_epoch()
    assert place.run(following) == 0, place.log(following)
    place.until(lambda ledger: not ledger.pending)
    assert place.whole(1, 2, 3)


def test_a_second_sigterm_ends_a_driver_at_once(place: Place) -> None:
    epoch = place.raise_epoch()  # nobody coordinates: it waits for the older epochs' clean-up
    tree = place.start(epoch)
    try:
        place.until(lambda ledger: ledger.claim != "")
        os.kill(tree.leader.pid, signal.SIGTERM)
        os.kill(tree.leader.pid, signal.SIGTERM)
        assert tree.leader.wait(WAIT_SECONDS) in (128 + signal.SIGTERM, 0), "or the first one was enough"
    finally:
        tree.kill()
    assert place.ledger().decided == 0


def test_a_driver_that_waits_for_the_operator_stops_when_asked(place: Place) -> None:
    epoch = place.raise_epoch()  # nobody coordinates
    tree = place.start(epoch)
    try:
        place.wait_for_log(epoch, "older checkpoints are waited for")
        os.kill(tree.leader.pid, signal.SIGTERM)
        assert tree.leader.wait(WAIT_SECONDS) == 0, place.log(epoch)
    finally:
        tree.kill()
    assert place.last_word(epoch)["reason"] == "Stopped"
    assert place.ledger().decided == 0


def test_an_epoch_is_claimed_once(place: Place) -> None:
    place.write_job(trigger=STREAMING)
    place.coordinate()
    epoch = place.raise_epoch()
    tree = place.start(epoch)
    try:
        claim = place.until(lambda ledger: ledger.claim != "").claim
        twin = "twin"
        assert place.run(epoch, SINKJOB_TERMINATION_LOG=str(place.folder / twin)) == 3
        said = json.loads((place.folder / twin).read_text())
        assert said["reason"] == "Fenced"
        assert claim in said["message"]
        assert place.ledger().claim == claim
        later = place.raise_epoch()
        assert place.run(epoch, SINKJOB_TERMINATION_LOG=str(place.folder / twin)) == 3, "an older epoch claims nothing"
        assert tree.leader.wait(WAIT_SECONDS) == 3, "the newer epoch fences the one that runs"
    finally:
        tree.kill()
    assert place.ledger().epoch == later


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (
            {"sinks": [{"name": "lake", "type": "file", "options": {"path": "/x", "formatt": "json"}}]},
            "spec.sinks[0].options.formatt",
        ),
        (
            {"source": {"format": "rate", "optionsFrom": [{"secretRef": {"name": "nowhere"}}]}},
            "spec.source.optionsFrom[0]",
        ),
    ],
)  # fmt: skip
def test_a_manifest_that_cannot_be_run_is_told_with_its_field_and_claims_nothing(
    place: Place, change: dict[str, object], path: str
) -> None:
    place.write_job(valid=False, **change)
    epoch = place.raise_epoch()
    assert place.run(epoch) == 2
    said = place.last_word(epoch)
    assert (said["reason"], said["path"]) == ("InvalidSpec", path)
    assert place.ledger().claim == ""


def test_what_ends_a_run_is_told_without_a_secret(place: Place) -> None:
    secret = place.folder / "mounts" / "secrets" / "keys"
    secret.mkdir(parents=True)
    (secret / "encoding").write_text("hushhush")
    source = {"format": "json", "path": str(place.folder / "input"), "schema": "id BIGINT"}
    place.write_job(source={**source, "optionsFrom": [{"secretRef": {"name": "keys"}}]})
    place.coordinate()
    epoch = place.raise_epoch()
    assert place.run(epoch) == 1
    said = place.last_word(epoch)
    assert said["reason"] == "QueryFailed"
    assert "***" in said["message"]
    assert "hushhush" not in json.dumps([line for line in place.log(epoch) if "job" in line])


def test_a_target_that_cannot_be_used_is_told_with_its_field(place: Place) -> None:
    (place.folder / "lines").write_text("in the way")
    epoch = place.raise_epoch()
    assert place.run(epoch) == 1
    said = place.last_word(epoch)
    assert (said["reason"], said["path"]) == ("NotADirectory", "spec.sinks[1].options.path")


def test_an_api_server_that_is_away_for_a_while_stops_nothing(
    tmp_path: Path, namespace: str, control_plane: ControlPlane
) -> None:
    with operator_at(tmp_path, namespace, control_plane.kubeconfig) as place:
        place.write_job(trigger=STREAMING)
        place.add_file(1)
        place.create_ledger()
        place.coordinate()
        epoch = place.raise_epoch()
        tree = place.start(epoch)
        try:
            place.until(lambda ledger: ledger.decided >= 1)
            control_plane.apiserver.kill()
            place.add_file(2)
            place.add_file(3)
            time.sleep(AWAY_SECONDS)
            assert tree.leader.poll() is None, place.log(epoch)
            control_plane.start_apiserver()
            place.until(lambda ledger: ledger.decided >= 3 and not ledger.pending)
            os.kill(tree.leader.pid, signal.SIGTERM)
            assert tree.leader.wait(WAIT_SECONDS) == 0, place.log(epoch)
        finally:
            tree.kill()
            control_plane.start_apiserver()
        assert place.whole(1, 2, 3)


def test_a_lost_ledger_stops_by_name_until_it_is_accepted_once(place: Place) -> None:
    place.coordinate()
    assert place.run(place.raise_epoch()) == 0
    place.until(lambda ledger: not ledger.records)
    place.add_file(3)
    for nonce in (0, 1):
        place.lose_ledger()
        epoch = place.raise_epoch()
        assert place.run(epoch, SINKJOB_TERMINATION_LOG=str(place.folder / "said")) == 1
        said = json.loads((place.folder / "said").read_text())
        assert said["reason"] == "LedgerLost"
        assert place.ledger().decided == 0
        if nonce:
            assert "was accepted with nonce 1" in said["message"], "a nonce is taken once, though the ledger is new"
            return
        place.write_job(recovery={"nonce": 1, "accept": ["LedgerLost"]})
        again = place.raise_epoch()
        assert place.run(again) == 0, place.log(again)
        place.until(lambda ledger: not ledger.records)
        assert place.whole(1, 2, 3)


def test_what_a_killed_driver_had_to_commit_is_finished_by_one_that_only_commits(place: Place) -> None:
    place.coordinate()
    points = place.folder / "points"
    points.mkdir()
    first = place.raise_epoch()
    tree = place.start(first, SINKJOB_CRASH_POINT="S10.before@1", SINKJOB_CRASH_DIR=str(points))
    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while not (points / "S10.before.hit").exists():
            assert time.monotonic() < deadline, place.log(first)
            time.sleep(0.05)
    finally:
        tree.kill()
    assert not committed(place.ledger(), "lake", 1)
    second = place.raise_epoch()
    assert place.run(second, "driver", "--commit-only") == 0, place.log(second)
    ledger = place.ledger()
    assert committed(ledger, "lake", ledger.decided)
    assert place.last_word(second)["reason"] == "Completed"
    third = place.raise_epoch()
    assert place.run(third) == 0, place.log(third)
    place.until(lambda ledger: not ledger.pending)
    assert place.whole(1, 2)


def test_a_committer_pod_commits_what_a_driver_decides_until_it_is_asked_to_stop(place: Place) -> None:
    sinks = [
        {"name": name, "type": "file", "options": {"path": str(place.folder / name), "format": "json"},
         "commit": {"runOn": "Job"}}
        for name in ("lake", "lines")
    ]  # fmt: skip
    place.write_job(sinks=sinks)
    epoch = place.raise_epoch()
    committer = place.start(epoch, "commit", SINKJOB_TERMINATION_LOG=str(place.folder / "said"), SINKJOB_EPOCH="")
    try:
        assert place.run(epoch) == 0, place.log(epoch)
        place.until(lambda ledger: ledger.decided == 2 and not ledger.records)
        os.kill(committer.leader.pid, signal.SIGTERM)
        assert committer.leader.wait(WAIT_SECONDS) == 0, committer.tail()
    finally:
        committer.kill()
    assert place.whole(1, 2)
    assert json.loads((place.folder / "said").read_text())["reason"] == "Stopped"
    assert place.ledger().holder.startswith("committer ")


def test_a_committer_that_another_has_followed_ends_as_fenced(place: Place) -> None:
    place.raise_epoch()
    committer = place.start(1, "commit")
    try:
        place.until(lambda ledger: ledger.holder.startswith("committer "))
        place.coordinate()
        assert committer.leader.wait(WAIT_SECONDS) == 3, committer.tail()
    finally:
        committer.kill()
    assert place.last_word(1)["reason"] == "Fenced"
