"""What was staged is gone although it was decided: the checkpoint stays pending, by name, until a person speaks."""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.place import Place
from tests.integration.warm import Answer
from tests.killmatrix.tree import Tree

pytestmark = [pytest.mark.integration, pytest.mark.slow]

WAIT_SECONDS_MAX = 120.0


def test_a_committable_that_is_lost_before_its_commit_holds_the_checkpoint_until_it_is_given_up(place: Place) -> None:
    place.restore("late")
    assert "CommittableLost" in _lose_second_of(place, 4, 5).output
    decided = place.decided()
    place.refused("CommittableLost", code=3)
    assert place.decided() == decided
    assert place.numbers("lake") == {1: 1, 2: 1, 3: 1, 4: 1}
    place.accept(1, ["CommittableLost"])
    place.add_file(6)
    place.done()
    assert place.numbers("lake") == {1: 1, 2: 1, 3: 1, 4: 1, 6: 1}
    assert place.numbers("lines") == dict.fromkeys(range(1, 7), 1)
    _lose_second_of(place, 7, 8)
    place.refused("CommittableLost", code=3)


def test_a_committable_that_is_lost_after_a_crash_is_in_doubt_until_it_is_taken_as_landed(
    place: Place, tmp_path: Path
) -> None:
    place.restore("late")
    place.add_file(4)
    _killed_between_decision_and_commit(place, tmp_path)
    assert _unstage(place, 0) == 1
    doubted = place.run()
    assert (doubted.code, "InDoubt: checkpoint 4 of sink lake" in doubted.output) == (3, True), doubted.output
    assert place.numbers("lake") == {1: 1, 2: 1, 3: 1}
    place.accept(1, ["InDoubt"])
    place.add_file(5)
    place.done()
    assert place.numbers("lake") == {1: 1, 2: 1, 3: 1, 5: 1}
    assert place.numbers("lines") == dict.fromkeys(range(1, 6), 1)


def _lose_second_of(place: Place, first: int, second: int) -> Answer:
    """Run over two new files, and take away what is staged of the second while the first cannot be committed."""
    before = place.decided()
    place.add_file(first)
    place.add_file(second)
    answers: list[Answer] = []
    run = threading.Thread(target=lambda: answers.append(place.run()))
    claim = place.claim()
    run.start()
    _until(lambda: place.claim() not in ("", claim))
    with _locked(place):
        _until(lambda: place.decided() == before + 2)
        assert _unstage(place, before + 2) == 1
    run.join(WAIT_SECONDS_MAX)
    (answer,) = answers
    assert answer.code == 3, answer.output
    return answer


@contextmanager
def _locked(place: Place) -> Iterator[None]:
    """The target's own lock: no evidence moves, and so nothing after the first checkpoint is committed."""
    handle = os.open(place.work / "out/lake/_sinkjob/lock", os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _unstage(place: Place, checkpoint: int) -> int:
    """Remove what the lake's writers staged, of one checkpoint or (0) of all; how many files."""
    mark = f"-{checkpoint:012d}-" if checkpoint else "-"
    staged = [p for p in (place.work / "out/lake/_sinkjob/staging").rglob("*.parquet") if mark in p.name]
    for path in staged:
        path.unlink()
    return len(staged)


def _killed_between_decision_and_commit(place: Place, folder: Path) -> None:
    command = [sys.executable, "-m", "sinkruntime.cli.main", "run", "job.yaml", "--master", "local[2]"]
    crash = {"SINKJOB_CRASH_POINT": "S8.after", "SINKJOB_CRASH_DIR": str(folder)}
    before = place.decided()
    tree = Tree.start(command, place.work, crash, folder / "log")
    try:
        _until(lambda: (folder / "S8.after.hit").exists() or tree.leader.poll() is not None)
        assert tree.leader.poll() is None, tree.tail()
    finally:
        tree.kill()
    assert place.decided() == before + 1


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)
