"""Jobs whose ledgers were written without Spark: each change is an event that the protocol takes.

The tests of the command line read them back through the real commands. The targets are those of the `memory` sink.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner, Result

from sinkruntime.cli.main import cli
from sinkruntime.local.workspace import Workspace
from sinkruntime.protocol.events import (
    BeginAbort,
    ClaimEpoch,
    Decide,
    Event,
    NoteRecovered,
    Outcome,
    OutcomeKind,
    RaiseEpoch,
    RaiseToken,
    Report,
)
from sinkruntime.protocol.ledger import Authority, Ledger, Offsets, Part, Payload, Position, Record
from sinkruntime.protocol.machine import step
from sinkruntime.sinks.memory.session import TARGETS
from sinkruntime.sinks.memory.target import MemoryTarget
from sinkruntime.spec.bind import load_job

LEDGER_ID = "11111111-2222-4333-8444-555555555555"
DECIDED_MS = 1_763_700_000_000  # 2025-11-21T04:40:00Z

MANIFEST = """\
apiVersion: sinkjob.io/v1alpha1
kind: SinkJob
metadata: {name: small, namespace: tests}
spec:
  source: {format: rate}
  transform:
  - sql: SELECT value FROM input
  sinks:
  - name: lake
    type: memory
    options: {target: TARGET}
  - name: screen
    type: memory
    options: {target: TARGET}
"""


def invoke(*arguments: str) -> Result:
    """Run the command line in this process; stdout and stderr apart."""
    return CliRunner().invoke(cli, arguments)


@dataclass
class Fabricated:
    """A manifest in a folder of its own, and its ledger, which `take` moves on."""

    folder: Path

    @property
    def path(self) -> str:
        return str(self.folder / "job.yaml")

    @property
    def target(self) -> MemoryTarget:
        """What both sinks write to."""
        name = self.folder.name
        return TARGETS.setdefault(name, MemoryTarget(f"memory-{name}"))

    @property
    def workspace(self) -> Workspace:
        return Workspace(load_job(self.path))

    def write(self, text: str = MANIFEST) -> None:
        (self.folder / "job.yaml").write_text(text.replace("TARGET", self.folder.name))

    def take(self, *events: Event) -> Ledger:
        """Apply events to the stored ledger, which is made if need be."""

        async def apply() -> Ledger:
            store = self.workspace.store
            stored = await store.load() or await store.create(Ledger(LEDGER_ID, "tests/small"))
            for event in events:
                after, _ = step(stored.ledger, event)
                stored = await store.replace(after, stored.version)
            return stored.ledger

        return asyncio.run(apply())

    def begin(self) -> None:
        """Epoch 1 with a driver and a coordinator."""
        self.workspace.save_revision()
        recovered = NoteRecovered(Authority.TOKEN, 1, 1, final=True)
        self.take(RaiseEpoch(1), ClaimEpoch(1, "driver"), RaiseToken(1, "coordinator"), recovered)

    def decide(self, number: int, payload: Payload | None = None) -> None:
        """Decide checkpoint `number`, with three rows for `lake` and one for `screen`."""
        ends = [Offsets(f"digest {n}", f'{{"offset":{n}}}' if n else "") for n in (number - 1, number)]
        position = Position("query", number - 1, ends[0], ends[1])
        parts = {"lake": Part(payload, rows=3), "screen": Part(rows=1)}
        record = Record(
            number,
            f"record {number}",
            1,
            self.workspace.revision,
            position,
            parts,
            decided_ms=DECIDED_MS + number * 1000,
        )
        self.take(Decide(record, "driver", max_pending=16, commit_timeout_seconds=60.0))

    def report(
        self, number: int, kind: OutcomeKind, sinks: Sequence[str] = ("lake", "screen"), reason: str = ""
    ) -> None:
        """Report the outcome for both sinks, or for those that are named."""
        message = f"why {reason} came" if reason else ""
        committed = kind is OutcomeKind.COMMITTED
        outcomes = tuple(Outcome(number, sink, kind, committed, reason=reason, message=message) for sink in sinks)
        self.take(Report(Authority.TOKEN, 1, outcomes))
        if committed:
            for sink in sinks:
                self.target.evidence[LEDGER_ID, sink] = number

    def settle(self, number: int) -> None:
        """Decide, commit and clean."""
        self.decide(number)
        self.report(number, OutcomeKind.COMMITTED)
        self.report(number, OutcomeKind.CLEANED)

    def abort(self, number: int) -> None:
        """Give a pending checkpoint up, as far as it is recorded."""
        self.take(BeginAbort(1, number, "ann", "wrong rows"))
        self.report(number, OutcomeKind.FENCED)
