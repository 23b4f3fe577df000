"""What a driver waits for before it ends: its own parts, and nobody else's."""

from __future__ import annotations

import pytest

from sinkruntime.cluster.owed import Owed, owed, waits_for_a_person
from sinkruntime.errors import ExitCode
from sinkruntime.protocol.ledger import Authority, CheckpointState, Ledger, Offsets, Part, PartState, Position, Record

P, C = PartState, CheckpointState
AT = Position("q", 0, Offsets("a"), Offsets("b"))
MINE, THEIRS = Authority.EPOCH, Authority.TOKEN


def part(state: PartState, authority: Authority = MINE, reason: str = "") -> Part:
    return Part(state=state, authority=authority, reason=reason, message="as the test says")


def ledger(*records: dict[str, Part], state: CheckpointState = C.DECIDED) -> Ledger:
    made = [Record(number, f"r{number}", 1, "rev", AT, parts, state) for number, parts in enumerate(records, start=1)]
    return Ledger("id", "n/j", epoch=1, records=tuple(made))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (ledger(), Owed.NOTHING),
        (ledger({"a": part(P.PENDING, THEIRS)}), Owed.NOTHING),
        (ledger({"a": part(P.PENDING)}), Owed.COMMITS),
        (ledger({"a": part(P.IN_DOUBT)}), Owed.COMMITS),
        (ledger({"a": part(P.COMMITTED), "b": part(P.PENDING, THEIRS)}), Owed.CLEANING),
        (ledger({"a": part(P.COMMITTED)}, state=C.COMMITTED), Owed.CLEANING),
        (ledger({"a": part(P.CLEANED)}, state=C.SETTLED), Owed.NOTHING),
        (ledger({"a": part(P.HELD, reason="Full")}), Owed.STUCK),
        (ledger({"a": part(P.HELD, reason="Full")}, {"a": part(P.PENDING)}), Owed.STUCK),
        (ledger({"a": part(P.HELD, reason="Full"), "b": part(P.PENDING)}), Owed.COMMITS),
        (ledger({"a": part(P.HELD, THEIRS, "Full")}, {"b": part(P.PENDING)}), Owed.COMMITS),
        (ledger({"a": part(P.HELD, reason="Full")}, state=C.ABORTING), Owed.COMMITS),
        (ledger({"a": part(P.FENCED)}, state=C.ABORTING), Owed.CLEANING),
    ],
)
def test_what_is_owed_under_the_epoch(found: Ledger, expected: Owed) -> None:
    assert owed(found, MINE) is expected


def test_a_stuck_part_ends_the_process_by_its_own_reason() -> None:
    ended = waits_for_a_person(ledger({"a": part(P.HELD, THEIRS, "Theirs"), "b": part(P.HELD, reason="Full")}), MINE)
    assert ended is not None
    assert (ended.reason, ended.code) == ("Full", ExitCode.FENCED_OR_IN_DOUBT)
    assert ended.message == "checkpoint 1 of sink b is held: as the test says"
    assert waits_for_a_person(ledger({"a": part(P.HELD, THEIRS, "Theirs")}), MINE) is None
