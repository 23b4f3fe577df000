"""Names, labels and finalizers that operator, driver and ledger store all need. Holds no request."""

from __future__ import annotations

import hashlib

GROUP = "sinkjob.io"

#: Labels of every object of a job: who made it, for which job, what it is.
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
COMPONENT_LABEL = "app.kubernetes.io/component"
JOB_LABEL = f"{GROUP}/job"
MANAGED_BY = "sinkjob"

#: On the ledger: the uid of its SinkJob. No owner reference: a deletion in the foreground, which is what GitOps tools
#: ask for, would remove at once what the ledger owns, and with it what pending checkpoints need.
OWNER_ANNOTATION = f"{GROUP}/owner"

#: Keeps the ledger while its SinkJob is deleted, until `deletionPolicy` is done.
LEDGER_FINALIZER = f"{GROUP}/ledger"

#: The longest name that is both a label's value and a host name.
NAME_LENGTH_MAX = 63
DIGEST_LENGTH = 8


def bounded(job: str, suffix: str) -> str:
    """`<job>-<suffix>`; where that is too long, with a digest of the job's name in place of the end of it."""
    name = f"{job}-{suffix}"
    if len(name) <= NAME_LENGTH_MAX:
        return name
    digest = hashlib.sha256(job.encode()).hexdigest()[:DIGEST_LENGTH]
    kept = job[: NAME_LENGTH_MAX - len(suffix) - DIGEST_LENGTH - 2].rstrip("-.")
    return f"{kept}-{digest}-{suffix}"


def ledger_name(job: str) -> str:
    """Of the ledger's ConfigMap."""
    return bounded(job, "ledger")


def payload_prefix(job: str) -> str:
    """What the names of a job's payload ConfigMaps begin with."""
    return bounded(job, "payload")


def labels(job: str, component: str) -> dict[str, str]:
    """The labels of an object of a job (decision 0005)."""
    return {
        "app.kubernetes.io/name": "sinkjob",
        "app.kubernetes.io/instance": job,
        "app.kubernetes.io/part-of": "sinkjob",
        MANAGED_BY_LABEL: MANAGED_BY,
        COMPONENT_LABEL: component,
        JOB_LABEL: job,
    }


def selector(job: str, component: str) -> str:
    """The label selector for objects of one job and component."""
    return f"{MANAGED_BY_LABEL}={MANAGED_BY},{JOB_LABEL}={job},{COMPONENT_LABEL}={component}"


def committer_holder(pod: str, uid: str) -> str:
    """What a committer pod's processes begin the ledger's `holder` with, followed by `/` and a random part: so anybody
    sees by the ledger that the present tenure is this pod's."""
    return f"committer {pod}/{uid}"
