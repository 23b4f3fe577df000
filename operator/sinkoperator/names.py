"""Names, labels and annotations of a job's objects: the same from every replica, so a second create finds the first.

Used by the plan, the object builders and the shell. Never looks at a cluster.
"""

from __future__ import annotations

import hashlib

from sinkruntime.kube.names import (
    COMPONENT_LABEL,
    DIGEST_LENGTH,
    GROUP,
    JOB_LABEL,
    LEDGER_FINALIZER,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    OWNER_ANNOTATION,
    bounded,
    ledger_name,
)
from sinkruntime.spec.digest import revision as revision_of
from sinkruntime.spec.models import SinkJobSpec

__all__ = [
    "COMPONENT_LABEL",
    "JOB_LABEL",
    "LEDGER_FINALIZER",
    "MANAGED_BY",
    "MANAGED_BY_LABEL",
    "OWNER_ANNOTATION",
    "access_name",
    "committer_name",
    "driver_name",
    "intent",
    "ledger_name",
    "revision_name",
    "run_of",
    "selector",
]

#: On the SinkJob: its deletion waits for `deletionPolicy`. (`LEDGER_FINALIZER` is on the ledger.)
JOB_FINALIZER = f"{GROUP}/job"

EPOCH_LABEL = f"{GROUP}/epoch"
REVISION_LABEL = f"{GROUP}/revision"

#: Values of `COMPONENT_LABEL`.
DRIVER, EXECUTOR, COMMITTER, LEDGER, PAYLOAD, REVISION = (
    "driver", "executor", "committer", "ledger", "payload", "revision",
)  # fmt: skip

#: On driver and committer pods: what they were started for (see `intent`), and whether the driver only commits.
INTENT_ANNOTATION = f"{GROUP}/intent"
COMMIT_ONLY_ANNOTATION = f"{GROUP}/commit-only"
#: On a ControllerRevision: the digest of its sinks alone (`sinkruntime.spec.digest.sinks_revision`).
SINKS_ANNOTATION = f"{GROUP}/sinks"
#: On a SinkJob that is being deleted: its own uid lets it go at once, as `Orphan` does.
FORCE_DELETE_ANNOTATION = f"{GROUP}/force-delete"


def driver_name(job: str, epoch: int) -> str:
    """Of the driver's Pod and ConfigMap in an epoch."""
    return bounded(job, f"driver-{epoch}")


def committer_name(job: str, number: int) -> str:
    """Of a committer Pod."""
    return bounded(job, f"committer-{number}")


def access_name(job: str) -> str:
    """Of the job's ServiceAccount, Role and RoleBinding."""
    return bounded(job, "driver")


def revision_name(job: str, revision: str) -> str:
    """Of a ControllerRevision."""
    return bounded(job, revision)


def selector(job: str) -> str:
    """The label selector that finds all objects of a job in its namespace."""
    return f"{MANAGED_BY_LABEL}={MANAGED_BY},{JOB_LABEL}={job}"


def intent(spec: SinkJobSpec, revision: str = "") -> str:
    """What a person asks for: revision, restart nonce, word of recovery. A new one is a new try, without waiting.

    `revision` is the spec's, where the caller knows it already: it is costly to make.
    """
    word = ",".join([str(spec.recovery.nonce), *sorted(spec.recovery.accept)])
    digest = hashlib.sha256(word.encode()).hexdigest()[:DIGEST_LENGTH]
    return f"{revision or revision_of(spec)}/{spec.restart_nonce}/{digest}"


def run_of(intended: str) -> str:
    """The part of an intent that names a run: `<revision>/<restartNonce>`, which is a Batch job's identity."""
    return intended.rpartition("/")[0]
