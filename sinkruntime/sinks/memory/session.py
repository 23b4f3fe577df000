"""How the parts of the `memory` sink reach their target: by name, and through an intercept that may do harm.

Called by the writer and the committers. Whoever simulates processes fills `TARGETS` and `INTERCEPTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Protocol

from pydantic import Field

from sinkruntime.api import (
    SinkIdentity,
)
from sinkruntime.sinks.memory.target import MemoryTarget
from sinkruntime.spec.base import OptionsModel
from sinkruntime.spec.quantities import Duration

#: The targets by name. Who simulates processes puts one in; one that is missing is made.
TARGETS: dict[str, MemoryTarget] = {}


class Tier(StrEnum):
    """Which committers there are. With both, the first publishes the rows and the second moves the evidence."""

    COMMITTER = "committer"
    AGGREGATED = "aggregated"
    BOTH = "both"


class Options(OptionsModel):
    """Options of `memory`. The counts say how often a fault comes before calls succeed, over all processes."""

    target: str = Field(description="Name of the target in this process.")
    tier: Tier = Field(default=Tier.BOTH, description="`committer`, `aggregated`, or `both`.")
    retries: int = Field(default=0, ge=0, description="How many commits are answered `retry_later` first.")
    updates: int = Field(default=0, ge=0, description="How many commits are answered `update_and_retry_later` first.")
    refusals: int = Field(default=0, ge=0, description="How many commits are refused first.")
    lost_answers: int = Field(default=0, ge=0, description="How many commits land with their answer lost.")
    crashes: int = Field(default=0, ge=0, description="How many commits raise after they landed.")
    delay: Duration | None = Field(default=None, description="How long each commit takes.")
    life: Duration | None = Field(default=None, description="How long staged rows live; left out: for ever.")


class Fault(StrEnum):
    """What may go wrong with one call of the target."""

    NONE = "none"
    UNAVAILABLE = "unavailable"  # nothing happened, and that is known
    LOST_ANSWER = "lost_answer"  # it happened, and that is not known
    REFUSED = "refused"  # turned down for good


class Intercept(Protocol):
    """Stands between a sink and its target. May raise, to crash the caller there."""

    def before(self, operation: str, subject: str) -> Fault: ...
    def after(self, operation: str, subject: str) -> None: ...


class NoFaults:
    """The intercept that is there unless another one is put in."""

    def before(self, operation: str, subject: str) -> Fault:
        return Fault.NONE

    def after(self, operation: str, subject: str) -> None:
        return


#: The intercepts by target name.
INTERCEPTS: dict[str, Intercept] = {}


class Session:
    """One part of the sink, connected: the target, through its intercept."""

    def __init__(self, options: Options, identity: SinkIdentity) -> None:
        self.options = options
        self.owner = (identity.ledger_id, identity.sink)
        self.target = TARGETS.setdefault(options.target, MemoryTarget(f"memory-{options.target}"))
        self.intercept: Intercept = INTERCEPTS.get(options.target, NoFaults())

    def call(self, operation: str, subject: str, effect: Callable[[], Any]) -> tuple[Fault, Any]:
        """Run `effect`, unless a fault comes first; a lost answer comes after it."""
        fault = self.intercept.before(operation, subject)
        if fault in (Fault.UNAVAILABLE, Fault.REFUSED):
            return fault, None
        result = effect()
        self.intercept.after(operation, subject)
        return fault, result

    def must(self, operation: str, subject: str, effect: Callable[[], Any]) -> Any:
        """As `call`, for what cannot answer: anything but success is an error."""
        fault, result = self.call(operation, subject, effect)
        if fault is not Fault.NONE:
            raise ConnectionError(f"{operation} of {subject}: {fault}")
        return result

    def due(self, fault: str, budget: int) -> bool:
        return budget > 0 and self.target.spend(self.owner, fault, budget)
