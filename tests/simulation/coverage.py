"""How often each transition, event, refusal and fault was hit; a zero means that it was not tested.

`__main__` installs the counters in each worker process. They watch the machine's own tables and change nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from sinkruntime.protocol import events, machine
from sinkruntime.protocol.events import Refusal
from sinkruntime.protocol.start import StartReason
from sinkruntime.protocol.table import CHECKPOINTS, OWED, PARTS
from tests.simulation.faults import EVENTS, RATES

Hits = Counter[str]

#: What the shells cannot reach in the simulator, and why. Everything else must be hit.
UNREACHED: dict[str, str] = {
    "start LedgerLost": "raised by whoever opens the ledger, before the driver's check; the file store's tests have it",
    "start CheckpointOwnedByAnother": "needs two jobs; tests of the start check have it",
    "part pending + absent": "the coordinator commits at once what its probe does not find, and reports that",
    "part in_doubt + absent": "the same",
    "part held + absent": "the same, for a part that it only looks at: it says nothing new",
    "part held + refused": "what the ledger says already is not reported again",
    "part committed + committed": "the same",
    "part held + progress": "one writer's late commit between a hold and an abort's fence; rarer than these seeds",
    "refusal OutOfOrder": "a sink's commits share one lane, so none is reported before an earlier one",
}


def key_of(pair: Any) -> str:
    """A row of a table, as text."""
    return " + ".join(part.value for part in pair)


class _Counted(dict[Any, Any]):
    """A table that counts the rows that are read."""

    def __init__(self, name: str, rows: Mapping[Any, Any], hits: Hits) -> None:
        super().__init__(rows)
        self._name = name
        self._hits = hits

    def _hit(self, key: Any) -> None:
        text = key.__name__ if isinstance(key, type) else key_of(key)
        self._hits[f"{self._name} {text}"] += 1

    def get(self, key: Any, default: Any = None) -> Any:
        """As a dict's."""
        found = super().get(key, default)
        if found is not default:
            self._hit(key)
        return found

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        self._hit(key)
        return found


def install(hits: Hits) -> None:
    """Put counters into this process's protocol."""
    for name, attribute in (("part", "PARTS"), ("checkpoint", "CHECKPOINTS"), ("owed", "OWED"), ("event", "_HANDLERS")):
        setattr(machine, attribute, _Counted(name, getattr(machine, attribute), hits))
    plain = events.Refused.__init__

    def counted(self: events.Refused, refusal: Refusal, message: str) -> None:
        hits[f"refusal {refusal}"] += 1
        plain(self, refusal, message)

    events.Refused.__init__ = counted  # type: ignore[method-assign]


def expected() -> list[str]:
    """Everything that must be hit."""
    names = [f"part {key_of(pair)}" for pair in PARTS]
    names += [f"checkpoint {key_of(pair)}" for pair in CHECKPOINTS]
    names += [f"owed {key_of(pair)}" for pair in OWED]
    names += [f"event {event.__name__}" for event in machine._HANDLERS]
    names += [f"refusal {refusal}" for refusal in Refusal]
    names += [f"start {reason}" for reason in StartReason]
    names += [f"fault {kind}" for kind in (*RATES, *EVENTS)]
    return names


def report(hits: Hits) -> list[str]:
    """Print the counts; returns what should have been hit and was not."""
    zeros = []
    for name in expected():
        count = hits[name]
        note = UNREACHED.get(name, "")
        print(f"  {count:>9}  {name}{f'   ({note})' if note and not count else ''}")
        if not count and not note:
            zeros.append(name)
    return zeros
