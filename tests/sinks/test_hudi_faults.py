"""The hudi sink when its committers die, wake up late, race, or meet other writers."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sinkruntime.api import Answer
from sinkruntime.errors import TargetError
from sinkruntime.sinks.hudi.committer import HudiCommitter
from sinkruntime.sinks.hudi.timeline import pending_paths
from sinkruntime.storage.base import Standing
from tests.servers.hudi_reader import HudiReader
from tests.sinks import harness
from tests.sinks.contract import MORE, ROWS, YES
from tests.sinks.harness import LEDGER, OTHER_LEDGER, Row, commit, stage
from tests.sinks.test_hudi_local import STAGING, Place, make, place

pytestmark = pytest.mark.integration
__all__ = ["place"]

#: Calls by which a commit changes the table, in the order of `Steps`.
CHANGES = ("add", "publish", "settle", "complete")
STEPS = (
    8  # of a commit of one file: requested, inflight, partition, publish, settle, complete, settle; and past its end
)
FOREIGN = "20300101000000000"


class Killed(BaseException):
    """The process is gone."""


class Steps:
    """A table at whose `step`-th change something happens, before or after it."""

    def __init__(self, table: Any, step: int, side: str, action: Callable[[], object]) -> None:
        self._table = table
        self._left = step
        self._side = side
        self._action: Callable[[], object] | None = action

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._table, name)
        return self._changing(found) if name in CHANGES else found

    def _changing(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            now = self._left == 0
            self._left -= 1
            if now and self._side == "before":
                self._act()
            result = change(*arguments)
            if now and self._side == "after":
                self._act()
            return result

        return call

    def _act(self) -> None:
        action, self._action = self._action, None
        if action is not None:
            action()


def read(place: Place) -> Counter[Row]:
    return Counter((row["id"], row["name"]) for row in place.reader.rows(str(place.root)))


def prepared(place: Place, ledger_id: str = LEDGER, sink: str = "lake", **more: Any) -> Any:
    made = make(place, ledger_id, sink, **more)
    made.prepare_target(harness.SCHEMA)
    return made


def stepped(sink: Any, step: int, side: str, action: Callable[[], object]) -> HudiCommitter:
    table: Any = Steps(sink.table(), step, side, action)
    committer = HudiCommitter(sink.options, table, sink.identity)
    committer.open()
    return committer


def die() -> None:
    raise Killed


def staged_files(place: Place) -> list[Path]:
    return [path for path in (place.root / STAGING).rglob("*") if path.is_file()]


def commits_of(place: Place, checkpoint: int) -> list[str]:
    """The instants that prove a checkpoint, of any sink."""
    found = []
    for path in place.root.glob(".hoodie/*.commit"):
        extra = json.loads(path.read_text())["extraMetadata"]
        if extra.get("sinkjob.checkpoint") == str(checkpoint):
            found.append(path.name)
    return found


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("step", range(STEPS))
def test_a_committer_that_dies_anywhere_is_followed_by_one_that_ends_it(place: Place, step: int, side: str) -> None:
    sink = prepared(place)
    staged = stage(sink, 1, ROWS)
    try:
        stepped(sink, step, side, die).commit(harness.requests_for(sink, staged).aggregated)
    except Killed:
        assert read(place) in (Counter(), Counter(ROWS))
    assert commit(sink, staged, may_have_landed=True).answers() <= YES
    assert read(place) == Counter(ROWS)
    assert len(commits_of(place, 1)) == 1
    assert commit(sink, stage(sink, 2, MORE), 1).answers() == {Answer.COMMITTED}
    assert read(place) == Counter(ROWS + MORE)
    harness.recover(sink, harness.garbage(epoch=2, firsts=[1, 3]))
    assert not staged_files(place)


@pytest.mark.parametrize("step", range(STEPS))
def test_a_committer_that_sleeps_anywhere_commits_nothing_twice(place: Place, step: int) -> None:
    """While it sleeps, others commit its checkpoint and the next one, and clean up."""
    sink = prepared(place)
    staged, later = stage(sink, 1, ROWS), stage(sink, 2, MORE)

    def meanwhile() -> None:
        assert commit(sink, staged, may_have_landed=True).answers() <= YES
        harness.clean(sink, 1)
        assert commit(sink, later, 1).answers() == {Answer.COMMITTED}
        harness.clean(sink, 2)

    requests = harness.requests_for(sink, staged).aggregated
    stepped(sink, step, "before", meanwhile).commit(requests)
    if step < STEPS - 1:
        assert requests[0].answer in YES, requests[0].message
        assert read(place) == Counter(ROWS + MORE)
    assert len(commits_of(place, 1)) == 1


@pytest.mark.parametrize("aborted", [False, True])
@pytest.mark.parametrize("step", range(STEPS))
def test_a_committer_that_sleeps_through_a_fence_lands_only_if_the_fence_said_so(
    place: Place, step: int, aborted: bool
) -> None:
    sink = prepared(place)
    staged = stage(sink, 1, ROWS)
    fences: list[set[Answer]] = []

    def meanwhile() -> None:
        fences.append(harness.ask(sink, "fence", staged).answers(Answer.FENCED))
        if aborted and fences[-1] == {Answer.FENCED}:
            harness.ask(sink, "abort", staged)

    requests = harness.requests_for(sink, staged).aggregated
    stepped(sink, step, "before", meanwhile).commit(requests)
    if fences == [{Answer.FENCED}]:
        assert requests[0].answer is Answer.REFUSED
        assert read(place) == Counter()
    else:
        assert read(place) == Counter(ROWS)
    if fences == [{Answer.FENCED}] and aborted:
        harness.recover(sink, harness.garbage(epoch=2, firsts=[1, 2]))
        assert not staged_files(place)
        assert not list(place.root.glob(".hoodie/*.inflight"))[1:]  # the first commit's stays
        assert not list(place.root.glob("*.parquet"))


@pytest.mark.parametrize("races", [25, pytest.param(1_000, marks=[pytest.mark.exhaustive, pytest.mark.timeout(1800)])])
def test_two_committers_of_one_checkpoint_race_and_one_commit_lands(place: Place, races: int) -> None:
    """They hold what two epochs staged: only one is decided, and even so no two could land."""
    sink = prepared(place)
    expected: Counter[Row] = Counter()
    for number in range(1, races + 1):
        rows: list[list[Row]] = [[(number, "one")], [(number, "other")]]
        both = [stage(sink, number, some, epoch=epoch) for epoch, some in enumerate(rows, start=1)]
        if number % 2:
            both[1], rows[1] = both[0], rows[0]
        made = [harness.requests_for(sink, staged, number - 1).aggregated for staged in both]
        gate = threading.Barrier(2)

        def race(requests: Any, gate: threading.Barrier = gate) -> None:
            committer = sink.create_aggregated_committer()
            committer.open()
            gate.wait(10)
            committer.commit(requests)

        threads = [threading.Thread(target=race, args=(requests,)) for requests in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        answers = [requests[0].answer for requests in made]
        assert set(answers) & YES
        (name,) = commits_of(place, number)
        extra = json.loads((place.root / ".hoodie" / name).read_text())["extraMetadata"]
        expected.update(rows[0] if extra["sinkjob.epoch"] == "1" else rows[1])
        harness.clean(sink, number, 1)
        harness.clean(sink, number, 2)
    assert read(place) == expected
    assert not staged_files(place)


def test_the_instant_of_a_checkpoint_is_the_same_for_every_writer_and_epoch(place: Place) -> None:
    sink = prepared(place)
    staged = [stage(sink, 1, ROWS, MORE), stage(sink, 1, ROWS, epoch=2), stage(sink, 2, MORE, epoch=2)]
    first, again, later = ({item["instant"] for _, item in some.present()} for some in staged)
    assert first == again
    assert len(first) == len(later) == 1
    assert max(later) > max(first)


def test_two_sinks_of_one_table_never_share_an_instant(place: Place) -> None:
    sinks = [prepared(place), prepared(place, sink="other"), prepared(place, OTHER_LEDGER)]
    staged = [stage(sink, 1, ROWS) for sink in sinks]
    assert len({item["instant"] for some in staged for _, item in some.present()}) == 3
    for sink, some in zip(sinks, staged, strict=True):
        assert commit(sink, some).answers() == {Answer.COMMITTED}
    assert read(place) == Counter(ROWS * 3)


def test_published_files_of_an_instant_that_is_not_completed_stay_invisible(place: Place) -> None:
    """Also when later instants of another sink are completed."""
    sink, other = prepared(place), prepared(place, sink="other")
    staged, theirs = stage(sink, 1, ROWS), stage(other, 1, MORE)
    with pytest.raises(Killed):
        stepped(sink, 4, "after", die).commit(harness.requests_for(sink, staged).aggregated)
    assert commit(other, theirs).answers() == {Answer.COMMITTED}
    assert read(place) == Counter(MORE)
    assert sink.evidence().checkpoint == 0
    assert commit(sink, staged, may_have_landed=True).answers() == {Answer.COMMITTED}
    assert read(place) == Counter(ROWS + MORE)


def test_recover_rolls_back_our_instants_of_undecided_checkpoints_and_no_others(place: Place) -> None:
    sink, other = prepared(place), prepared(place, sink="other")
    for some in (sink, other):
        with pytest.raises(Killed):
            stepped(some, 4, "after", die).commit(harness.requests_for(some, stage(some, 1, ROWS)).aggregated)
    foreign = place.root / ".hoodie" / f"{FOREIGN}.commit.requested"
    foreign.touch()
    assert len(list(place.root.glob("*.parquet"))) == 2
    harness.recover(sink, harness.garbage(epoch=2, firsts=[1, 1]))
    assert len(list(place.root.glob("*.parquet"))) == 1
    assert foreign.exists()
    begun = {path.name[:17] for path in place.root.glob(".hoodie/*.inflight")}
    owners = [json.loads((place.root / pending_paths(at)[1]).read_text())["extraMetadata"] for at in begun]
    assert {owner.get("sinkjob.sink") for owner in owners} == {None, "other"}


@pytest.mark.parametrize("name", [f"{FOREIGN}.commit.requested", f"{FOREIGN}.inflight", f"{FOREIGN}.clean.inflight"])
def test_another_writer_that_has_begun_something_is_refused_by_name(place: Place, name: str) -> None:
    sink = prepared(place)
    staged = stage(sink, 1, ROWS)
    foreign = place.root / ".hoodie" / name
    foreign.touch()
    made = commit(sink, staged)
    assert made.answers() == {Answer.REFUSED}
    assert made.reasons() == {"ConcurrentWriter"}
    assert FOREIGN in made.aggregated[0].message
    with pytest.raises(TargetError, match="ConcurrentWriter"):
        sink.prepare_target(harness.SCHEMA)
    foreign.unlink()
    assert commit(sink, staged).answers() == {Answer.COMMITTED}


def test_an_instant_that_another_has_taken_is_never_replaced(place: Place) -> None:
    sink = prepared(place)
    staged = stage(sink, 1, ROWS)
    (instant,) = {item["instant"] for _, item in staged.present()}
    path = place.root / ".hoodie" / f"{instant}.commit"
    path.write_text('{"extraMetadata": {}}')
    made = commit(sink, staged)
    assert made.answers() == {Answer.REFUSED}
    assert made.reasons() == {"NameTaken"}
    assert path.read_text() == '{"extraMetadata": {}}'


def test_a_damaged_commit_is_said_with_its_path(place: Place) -> None:
    sink = prepared(place)
    (place.root / ".hoodie" / f"{FOREIGN}.commit").write_text("{")
    made = commit(sink, stage(sink, 1, ROWS))
    assert made.reasons() == {"TimelineDamaged"}
    assert f"{FOREIGN}.commit" in made.aggregated[0].message


def test_a_checkpoint_that_was_rolled_back_behind_us_is_seen(place: Place) -> None:
    sink = prepared(place)
    commit(sink, stage(sink, 1, ROWS))
    (name,) = commits_of(place, 1)
    (place.root / ".hoodie" / name).unlink()
    assert sink.evidence().checkpoint == 0
    assert commit(sink, stage(sink, 2, MORE), 1).reasons() == {"TargetBehindLedger"}


def test_the_evidence_says_who_and_what(place: Place, hudi_reader: HudiReader) -> None:
    sink = prepared(place)
    commit(sink, stage(sink, 7, ROWS, epoch=3))
    (name,) = commits_of(place, 7)
    extra = json.loads((place.root / ".hoodie" / name).read_text())["extraMetadata"]
    assert {key: value for key, value in extra.items() if key.startswith("sinkjob.")} == {
        "sinkjob.ledger": LEDGER,
        "sinkjob.sink": "lake",
        "sinkjob.job": "data/flights",
        "sinkjob.checkpoint": "7",
        "sinkjob.epoch": "3",
    }
    assert name.removesuffix(".commit") in (sink.prove(7, 3) or "")
    assert sink.prove(8, 3) is None


def test_a_commit_that_another_release_or_name_of_the_job_has_begun_is_ended(place: Place) -> None:
    """What it wrote differs in its bytes, and says the same."""
    sink = prepared(place)
    staged = stage(sink, 1, ROWS)
    with pytest.raises(Killed):
        stepped(sink, 4, "after", die).commit(harness.requests_for(sink, staged).aggregated)
    for path in place.root.glob(".hoodie/*.inflight"):
        value = json.loads(path.read_text())
        if value["partitionToWriteStats"]:
            value["extraMetadata"]["sinkjob.job"] = "data/former-name"
            path.write_text(json.dumps(value, indent=7))
    assert commit(sink, staged, may_have_landed=True).answers() == {Answer.COMMITTED}
    assert read(place) == Counter(ROWS)


def test_a_committer_never_writes_to_a_commit_that_is_linked(place: Place) -> None:
    """One that slept before it wrote, with other bytes for the same commit, changes nothing."""
    sink = prepared(place)
    staged = stage(sink, 1, ROWS)
    (item,) = harness.requests_for(sink, staged).aggregated
    (instant,) = item.committable["instants"]
    final = place.root / ".hoodie" / f"{instant}.commit"
    (reserved,) = item.committable["reserved"]
    stage_name = place.root / STAGING / LEDGER / "lake" / reserved["staged"]
    table = sink.table()
    assert table.complete(reserved, f".hoodie/{instant}.commit", b"{}", (1, 1)) is Standing.PUBLISHED
    assert stage_name.exists()
    assert table.complete(reserved, f".hoodie/{instant}.commit", b"other", (1, 1)) is Standing.TAKEN
    assert final.read_bytes() == b"{}"
