"""What is known of a local job when nobody runs it: its ledger, whether a process runs it, what its targets prove.

The commands `status`, `commits`, `explain`, `plan` and `doctor` read through here. It changes nothing, and never tells
of a commit by the ledger where the target can be asked.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TypeVar

from sinkruntime.api import Evidence, Sink
from sinkruntime.coordinator.runner import OutOfTime, ThreadRunner
from sinkruntime.errors import SinkjobError
from sinkruntime.local.workspace import Workspace
from sinkruntime.protocol.ledger import Ledger, PartState
from sinkruntime.spec.bind import BoundSink
from sinkruntime.spec.options_from import Secrets, local_places, read_options_from

T = TypeVar("T")

#: How long one target may take to answer all that a command asks it.
TARGET_SECONDS = 60.0


class Phase(StrEnum):
    """How a local job stands."""

    NEVER_RUN = "NeverRun"  # there is no ledger
    RUNNING = "Running"  # a process holds its lock
    HELD = "Held"  # nothing runs, and a commit was turned down
    PENDING = "Pending"  # nothing runs, and decided checkpoints are not yet committed everywhere
    STOPPED = "Stopped"  # nothing runs, and all that was decided is committed


@dataclass(frozen=True, slots=True)
class Said:
    """What one target answered: `error` where it could not be asked, and then nothing else counts.

    `proofs` is by checkpoint: what the target proves of it, None where it proves nothing of that one by itself.
    """

    evidence: Evidence | None = None
    proofs: Mapping[int, str | None] = field(default_factory=lambda: MappingProxyType({}))
    error: str = ""


def read_ledger(workspace: Workspace) -> Ledger | None:
    """The job's ledger; None where it never ran. Raises `LedgerError` for one that cannot be used."""
    stored = asyncio.run(workspace.store.load())
    return stored.ledger if stored else None


def running_process(workspace: Workspace) -> int | None:
    """The process that runs the job on this machine, or None.

    The lock is only tried while the process that it names lives: a job that starts at this moment is not disturbed.
    """
    try:
        descriptor = os.open(workspace.root / "run.lock", os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        if not (text.isdigit() and _lives(int(text))):
            return None
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(text)
    finally:
        os.close(descriptor)
    return None


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def phase(ledger: Ledger | None, running: int | None) -> Phase:
    """How it stands."""
    if running is not None:
        return Phase.RUNNING
    if ledger is None:
        return Phase.NEVER_RUN
    if any(part.state is PartState.HELD for record in ledger.pending for part in record.parts.values()):
        return Phase.HELD
    return Phase.PENDING if ledger.pending else Phase.STOPPED


def committed_up_to(ledger: Ledger) -> int:
    """The last checkpoint before which, and with which, nothing is pending."""
    return ledger.pending[0].number - 1 if ledger.pending else ledger.decided


def epoch_of(ledger: Ledger, number: int) -> int:
    """The driver run that decided a checkpoint; 0 where none could have."""
    return max((epoch for epoch, first in enumerate(ledger.firsts, start=1) if first <= number), default=0)


def known_sinks(workspace: Workspace, ledger: Ledger) -> dict[str, Sink]:
    """The job's sinks, and those of older revisions whose checkpoints the ledger still knows, by name."""
    found: dict[str, Sink] = {}
    revisions = [entry.revision for entry in ledger.history] + [record.revision for record in ledger.records]
    for revision in dict.fromkeys([*revisions, workspace.revision]):
        try:
            found |= workspace.sinks_of(revision, ledger.ledger_id)
        except SinkjobError:
            continue  # that manifest is gone or no longer readable: its sinks are shown as unknown
    return found


def ask_targets(workspace: Workspace, sinks: Mapping[str, Sink], wanted: Mapping[int, int]) -> dict[str, Said]:
    """Ask all targets at once for their evidence and for the checkpoints `wanted` (number to epoch)."""

    def question(sink: Sink) -> Callable[[], Said]:
        return lambda: Said(sink.evidence(), {number: sink.prove(number, epoch) for number, epoch in wanted.items()})

    found = asyncio.run(_ask({name: question(sink) for name, sink in sinks.items()}))
    return {name: _told(said, secrets_of(workspace, workspace.bound.get(name))) for name, said in found.items()}


def ask_facts(workspace: Workspace, sinks: Mapping[str, Sink]) -> dict[str, Mapping[str, object] | str]:
    """What each target says of its own limits and settings (`Sink.inspect`), or why it could not be asked."""
    found = asyncio.run(_ask({name: sink.inspect for name, sink in sinks.items()}))
    return {
        name: secrets_of(workspace, workspace.bound.get(name)).hide(_reason(said))
        if isinstance(said, BaseException)
        else said
        for name, said in found.items()
    }


async def _ask(questions: Mapping[str, Callable[[], T]]) -> dict[str, T | BaseException]:
    runner = ThreadRunner()
    calls: Iterable[asyncio.Future[T]] = [
        asyncio.ensure_future(runner.call(question, TARGET_SECONDS)) for question in questions.values()
    ]
    answers: Sequence[T | BaseException] = await asyncio.gather(*calls, return_exceptions=True)
    return dict(zip(questions, answers, strict=True))


def _told(said: Said | BaseException, secrets: Secrets) -> Said:
    """The answer without any secret."""
    if isinstance(said, BaseException):
        return Said(error=secrets.hide(_reason(said)))
    proofs = {number: secrets.hide(text) if text else text for number, text in said.proofs.items()}
    known = said.evidence
    shown = known and Evidence(known.checkpoint, secrets.hide(known.target), secrets.hide(known.detail))
    return Said(shown, proofs)


def _reason(error: BaseException) -> str:
    """One line, whoever raised it."""
    if isinstance(error, OutOfTime):
        return f"the target did not answer within {TARGET_SECONDS:.0f} s"
    text = str(error) if isinstance(error, SinkjobError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())


def secrets_of(workspace: Workspace, sink: BoundSink | None) -> Secrets:
    """What must not be shown of a sink's options; read again, because nothing keeps it."""
    if sink is None:
        return Secrets({})
    return read_options_from(sink.spec.options_from, local_places(workspace.job.manifest.base), ("optionsFrom",))
