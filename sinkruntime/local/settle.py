"""Settles what a stopped job has left behind, without Spark: `sinkjob doctor JOB --resolve`.

It is a run without its query: the lock, a new epoch that fences the last driver, coordinators that commit what is
decided and then remove what older epochs staged and never decided. A prepared transaction of another job is touched
only when a person names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from sinkruntime.api import Sink
from sinkruntime.errors import ConfigurationError
from sinkruntime.local.inspection import read_ledger
from sinkruntime.local.workspace import Workspace

if TYPE_CHECKING:
    from sinkruntime.local.job import Display


@runtime_checkable
class RollsBack(Protocol):
    """A sink whose target keeps prepared transactions (`inspect` lists them)."""

    def roll_back(self, name: str) -> bool:
        """Roll one of another job or sink back, at a person's word; False: there is none of this name. Raises
        `ConfigurationError` for one of this sink's own: what becomes of those the ledger says."""


def settle(workspace: Workspace, display: Display) -> str:
    """Commit what the job's ledger knows, then roll back what it does not; a sentence that says how it stands."""
    from sinkruntime.local.job import settle_local  # imports Spark, which looking does without

    if read_ledger(workspace) is None:
        message = f"{workspace.name} has no ledger here, so nothing is known of what it prepared"
        raise ConfigurationError("NeverRun", message, advice="look in the folder where the job was run")
    ledger = settle_local(workspace, display)
    if ledger.pending:
        return f"{len(ledger.pending)} checkpoints are still pending, first {ledger.pending[0].number}"
    return f"all {ledger.decided} decided checkpoints are settled, and what was never decided is rolled back"


def roll_back(sinks: dict[str, Sink], name: str) -> str:
    """Roll back a prepared transaction of somebody else; the sink whose target held it. Raises
    `ConfigurationError`."""
    able = {sink: made for sink, made in sinks.items() if isinstance(made, RollsBack)}
    for sink, made in able.items():
        if made.roll_back(name):
            return sink
    message = f"no target of this job holds a prepared transaction {name}"
    raise ConfigurationError("NotPrepared", message, advice="sinkjob doctor JOB lists them")
