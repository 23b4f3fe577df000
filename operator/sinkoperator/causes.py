"""Why a driver ended, read off its pod: a kind that says what follows, and a reason for people.

Called by `restarts` when it accounts for an end. Pure; it never decides whether a driver is started again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sinkoperator.observed import DriverPod, Trouble
from sinkruntime.errors import ExitCode, LedgerOutOfReach, TargetUnavailable
from sinkruntime.protocol.start import StartReason


class Kind(StrEnum):
    """What follows from the way a driver ended."""

    DONE = "done"  # its work is done
    STOPPED = "stopped"  # it was asked to stop, and did so at a checkpoint boundary
    USER = "user"  # the job's own failure: counted against `maxRetries`
    INFRASTRUCTURE = "infrastructure"  # the cluster's doing: tried again, never counted against the job
    HELD = "held"  # a decided checkpoint waits for a person or for its target
    REFUSED = "refused"  # the start check found a disagreement: only a person goes on
    INVALID = "invalid"  # the manifest cannot be run: only another manifest goes on


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a driver ended."""

    kind: Kind
    trouble: Trouble


#: Termination message of a driver that ended well because it was asked to.
STOPPED = "Stopped"

#: Errors of ours that speak of the API server, a newer process or a target that is away, and not of the job; with exit
#: code 3, too.
_TRANSPORT = frozenset({"Fenced", LedgerOutOfReach.kind, "AnswerLost", "LedgerConflict", TargetUnavailable.kind})
#: What only a person mends, beside the disagreements of the start check.
_FINAL = frozenset({*StartReason, "LedgerCorrupt", "LedgerFormatTooNew"})
#: 128 + SIGKILL, 128 + SIGTERM: somebody outside ended the process.
_KILLED = frozenset({137, 143})
#: `status.reason` that comes from the job's own manifest, unlike all others, which are the cluster's.
_OWN_REASONS = frozenset({"DeadlineExceeded"})

GONE = Trouble("DriverGone", "the driver's pod is gone, and nobody saw it end")
NODE_LOST = Trouble(
    "NodeLost",
    "the driver's pod does not go away: its node is lost",
    "if the machine is off for good, delete its Node object; a newer epoch fences the old driver meanwhile",
)


def cause_of(pod: DriverPod) -> Cause:
    """Why an ended driver pod ended. The shell's cut: a lost pod or one that vanished never comes here."""
    said = pod.termination
    if pod.oom_killed:
        advice = "raise spec.driver.memoryOverhead (Python, off-heap) or spec.driver.memory (the JVM's heap)"
        return Cause(Kind.USER, Trouble("DriverOOMKilled", "the driver used more memory than it may", advice))
    if pod.pod_reason and pod.pod_reason not in _OWN_REASONS:
        message = f"the cluster ended the driver's pod: {pod.pod_reason}"
        return Cause(Kind.INFRASTRUCTURE, Trouble(f"Driver{pod.pod_reason}", message))
    if pod.exit_code == ExitCode.DONE or (pod.exit_code is None and pod.phase == "Succeeded"):
        if pod.deleting_since is not None or (said is not None and said.reason == STOPPED):
            return Cause(Kind.STOPPED, Trouble("DriverStopped", "the driver was asked to stop, and did"))
        return Cause(Kind.DONE, said or Trouble("Done", "the driver has done its work"))
    if said is not None and said.reason:
        return Cause(_kind_said(said, pod.exit_code), said)
    if pod.exit_code in _KILLED:
        message = f"the driver was killed (exit code {pod.exit_code})"
        return Cause(Kind.INFRASTRUCTURE, Trouble("DriverKilled", message))
    if pod.exit_code == ExitCode.INVALID_MANIFEST:
        return Cause(Kind.INVALID, Trouble("InvalidSpec", "the driver refused its manifest", "see the driver's log"))
    if pod.exit_code is None:
        return Cause(Kind.INFRASTRUCTURE, Trouble("DriverGone", "the driver ended without an exit code"))
    message = f"the driver ended with exit code {pod.exit_code} and said nothing"
    return Cause(Kind.USER, Trouble("DriverFailed", message, "see the driver's log"))


def _kind_said(said: Trouble, exit_code: int | None) -> Kind:
    """What the driver itself says is better evidence than its exit code."""
    if exit_code == ExitCode.INVALID_MANIFEST:
        return Kind.INVALID
    if said.reason in _TRANSPORT:
        return Kind.INFRASTRUCTURE
    if exit_code == ExitCode.FENCED_OR_IN_DOUBT:
        return Kind.HELD
    return Kind.REFUSED if said.reason in _FINAL else Kind.USER
