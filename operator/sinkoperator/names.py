"""Names, labels and annotations of a job's objects: the same from every replica, so a second create finds the first.

Used by the plan, the object builders and the shell. Never looks at a cluster.
"""

from __future__ import annotations

import hashlib

from sinkruntime.spec.digest import revision as revision_of
from sinkruntime.spec.models import API_GROUP, SinkJobSpec

#: On the SinkJob: its deletion waits for `deletionPolicy`. On the ledger: it outlives a deletion by hand.
JOB_FINALIZER = f"{API_GROUP}/job"
LEDGER_FINALIZER = f"{API_GROUP}/ledger"

#: Labels of every object of a job, beside the recommended `app.kubernetes.io/…`.
JOB_LABEL = f"{API_GROUP}/job"
EPOCH_LABEL = f"{API_GROUP}/epoch"
REVISION_LABEL = f"{API_GROUP}/revision"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
COMPONENT_LABEL = "app.kubernetes.io/component"
MANAGED_BY = "sinkjob"

#: Values of `COMPONENT_LABEL`.
DRIVER, EXECUTOR, COMMITTER, LEDGER, PAYLOAD, REVISION = (
    "driver", "executor", "committer", "ledger", "payload", "revision",
)  # fmt: skip

#: On driver and committer pods: what they were started for (see `intent`), and whether the driver only commits.
INTENT_ANNOTATION = f"{API_GROUP}/intent"
COMMIT_ONLY_ANNOTATION = f"{API_GROUP}/commit-only"
#: On a ControllerRevision: the digest of its sinks alone (`sinkruntime.spec.digest.sinks_revision`).
SINKS_ANNOTATION = f"{API_GROUP}/sinks"
#: On a SinkJob that is being deleted: its own uid lets it go at once, as `Orphan` does.
FORCE_DELETE_ANNOTATION = f"{API_GROUP}/force-delete"

#: The longest name that is both a label's value and a host name.
NAME_LENGTH_MAX = 63
DIGEST_LENGTH = 8


def bounded(job: str, suffix: str) -> str:
    """`<job>-<suffix>`, where that is too long with a digest of the job's name in place of the end of it."""
    name = f"{job}-{suffix}"
    if len(name) <= NAME_LENGTH_MAX:
        return name
    digest = hashlib.sha256(job.encode()).hexdigest()[:DIGEST_LENGTH]
    kept = job[: NAME_LENGTH_MAX - len(suffix) - DIGEST_LENGTH - 2].rstrip("-")
    return f"{kept}-{digest}-{suffix}"


def ledger_name(job: str) -> str:
    """Of the ledger's ConfigMap."""
    return bounded(job, "ledger")


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


def intent(spec: SinkJobSpec) -> str:
    """What a person asks for: revision, restart nonce, word of recovery. A new one is a new try, without waiting."""
    word = ",".join([str(spec.recovery.nonce), *sorted(spec.recovery.accept)])
    digest = hashlib.sha256(word.encode()).hexdigest()[:DIGEST_LENGTH]
    return f"{revision_of(spec)}/{spec.restart_nonce}/{digest}"


def run_of(intended: str) -> str:
    """The part of an intent that names a run: `<revision>/<restartNonce>`, which is a Batch job's identity."""
    return intended.rpartition("/")[0]
