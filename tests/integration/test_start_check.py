"""Every reason of the start check, made real: `sinkjob run` stops by name, changes nothing, and goes on when accepted.

Each case spoils a copy of a job that has run over two input files (`early`) and then over a third one (`late`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.integration.place import Place

pytestmark = [pytest.mark.integration, pytest.mark.slow]

Spoil = Callable[[Place], None]


@dataclass(frozen=True, slots=True)
class Case:
    """How to make the reasons real, once and once more; `after`: how often each input file is there when accepted."""

    name: str
    reasons: tuple[str, ...]
    spoil: Spoil
    after: dict[int, int]
    again: Spoil


def _drop(*parts: str) -> Spoil:
    def spoil(place: Place) -> None:
        for part in parts:
            shutil.rmtree(place.work / part)

    return spoil


def _older(*parts: str) -> Spoil:
    def spoil(place: Place) -> None:
        for part in parts:
            place.put_back("early", part)

    return spoil


def _source_ahead(place: Place) -> None:
    """Spark finishes a batch that the ledger does not know."""
    last = max(int(path.name) for path in (place.checkpoint / "commits").glob("[0-9]*"))
    for folder in ("offsets", "commits"):
        shutil.copy(place.checkpoint / folder / str(last), place.checkpoint / folder / str(last + 1))


def _target_ahead(place: Place) -> None:
    """The target proves a checkpoint that the ledger does not know."""
    for marker in place.work.glob("out/*/_sinkjob/*-*.json"):
        value = json.loads(marker.read_text())
        marker.write_text(json.dumps({**value, "checkpoint": value["checkpoint"] + 5}))


LEDGER = ".sinkjob/tests/started/ledger"
CASES = [
    Case("checkpoint deleted", ("NewCheckpoint",), _drop("checkpoint"), {1: 2, 2: 2, 3: 2, 4: 1}, _drop("checkpoint")),
    Case(
        "checkpoint one batch older",
        ("TargetAheadOfSource",),
        _older("checkpoint"),
        {1: 1, 2: 1, 3: 2, 4: 1},
        _older("checkpoint"),
    ),
    Case("target rolled back", ("TargetBehindLedger",), _older("out"), {1: 1, 2: 1, 4: 1}, _older("out")),
    Case("target dropped", ("TargetReplaced",), _drop("out"), {4: 1}, _drop("out")),
    Case(
        "ledger and checkpoint from an older backup",
        ("TargetAheadOfLedger",),
        _older(LEDGER, "checkpoint"),
        {1: 1, 2: 1, 3: 2, 4: 1},
        _target_ahead,
    ),
    Case(
        "ledger and target from an older backup",
        ("LedgerBehindSource",),
        _older(LEDGER, "out"),
        {1: 1, 2: 1, 4: 1},
        _source_ahead,
    ),
    Case(
        "ledger from an older backup",
        ("LedgerBehindSource", "TargetAheadOfLedger"),
        _older(LEDGER),
        {1: 1, 2: 1, 3: 1, 4: 1},
        _target_ahead,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_a_disagreement_stops_by_name_until_it_is_accepted_once(place: Place, case: Case) -> None:
    place.restore("late")
    case.spoil(place)
    place.add_file(4)
    place.refused(case.reasons[0])
    place.accept(1, case.reasons)
    place.done()
    assert place.numbers("lake") == place.numbers("lines") == case.after
    case.again(place)
    assert "accepted with nonce 1" in place.refused(case.reasons[-1])


@pytest.mark.parametrize("gone", [LEDGER, ".sinkjob"], ids=["ledger deleted", "job re-created"])
def test_a_lost_ledger_stops_by_name_until_it_is_accepted_once(place: Place, gone: str) -> None:
    place.restore("late")
    shutil.rmtree(place.work / gone)
    place.add_file(4)
    place.refused("LedgerLost")
    assert not place.ledger.exists() or not list(place.ledger.glob("*.json"))
    place.accept(1, ["LedgerLost"])
    place.done()
    assert place.numbers("lake") == place.numbers("lines") == {1: 1, 2: 1, 3: 1, 4: 1}
    shutil.rmtree(place.work / gone)
    assert "nonce 1" in place.refused("LedgerLost")


def test_two_jobs_on_one_checkpoint_stop_each_other(place: Place) -> None:
    place.restore("late")
    place.write_manifest("other.yaml", name="other", out="elsewhere")
    before = place.traces()
    refused = place.run("other.yaml")
    assert (refused.code, place.traces()) == (1, before), refused.output
    assert "CheckpointOwnedByAnother" in refused.output
    assert "tests/started" in refused.output, "it says whose it is"
    place.add_file(4)
    word = {"nonce": 1, "accept": ["CheckpointOwnedByAnother"]}
    place.write_manifest("other.yaml", name="other", out="elsewhere", recovery=word)
    taken = place.run("other.yaml")
    assert taken.code == 0, taken.output
    assert place.numbers("lake", "elsewhere") == {4: 1}
    place.refused("CheckpointOwnedByAnother")
    place.accept(1, ["CheckpointOwnedByAnother"])
    back = place.run()
    assert back.code == 0, back.output
    again = place.run("other.yaml")
    assert again.code == 1, again.output
    assert "accepted with nonce 1" in again.output
