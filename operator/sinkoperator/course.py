"""The course of a job: the phase that it is in, what holds it up, and what is done about its driver.

`lifecycle` and `deletion` make it, `plan` completes it, `status` tells it. Values only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sinkoperator.actions import Action
from sinkoperator.observed import Trouble
from sinkoperator.restarts import Restarts

#: Longest times until the next look, where nothing gives a hint before.
CALM_SECONDS = 300.0
#: While something is awaited of which no watch tells (a missing Secret, a full namespace, a lost node).
UNWATCHED_SECONDS = 15.0


class Phase(StrEnum):
    """`status.phase`."""

    PENDING = "Pending"  # nothing was started yet
    STARTING = "Starting"  # a driver's pod is there and not ready
    RUNNING = "Running"
    RESTARTING = "Restarting"  # the next driver follows, perhaps after a pause
    UPGRADING = "Upgrading"  # another revision takes over
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"  # nothing runs, nothing is pending
    FINISHING = "Finishing"  # all is decided, and being committed and cleaned
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"  # given up after `maxRetries`
    STALLED = "Stalled"  # only a person goes on
    DRAINING = "Draining"  # being deleted: what is pending is committed first
    ABORTING = "Aborting"  # being deleted: what is pending is given up
    TERMINATING = "Terminating"  # being deleted: nothing is owed any more


@dataclass(frozen=True, slots=True)
class Course:
    """See the module.

    `stalled`: only a person goes on, and why. `waiting`: what is awaited. `upgrade`: another revision is asked for than
    the one that runs. `untouched`: nothing at all is done, not even about commits.
    """

    phase: Phase
    restarts: Restarts
    actions: tuple[Action, ...] = ()
    stalled: Trouble | None = None
    waiting: Trouble | None = None
    upgrade: Trouble | None = None
    look_again_seconds: float = CALM_SECONDS
    untouched: bool = False
