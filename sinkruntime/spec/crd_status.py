"""The schema of a SinkJob's status and the columns of `kubectl get sinkjob`.

Used by `crd.py` only. The status is written by the operator alone; to decide, it reads back only `restarts` and
`commit.retried`.
"""

from typing import Any

SINKS_MAX = 256  # more than a job may have: removed sinks stay in the ledger's account

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "format": "int64", "minimum": 0}
_TIME = {"type": "string", "format": "date-time"}


def _fields(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


_CONDITION = {
    **_fields(
        type=_TEXT,
        status={"type": "string", "enum": ["True", "False", "Unknown"]},
        reason=_TEXT,
        message=_TEXT,
        lastTransitionTime=_TIME,
        observedGeneration=_COUNT,
    ),
    "required": ["type", "status", "reason", "lastTransitionTime"],
}

# How a driver or committer pod ended: the account that the next restart is counted on.
_END = _fields(
    epoch=_COUNT,
    intent=_TEXT,
    verdict=_TEXT,
    failures=_COUNT,
    infrastructure=_COUNT,
    reason=_TEXT,
    message=_TEXT,
    advice=_TEXT,
    path=_TEXT,
    nextTime=_TIME,
)

STATUS_SCHEMA: dict[str, Any] = {
    "description": "What the operator has seen last; written by the operator alone.",
    **_fields(
        observedGeneration=_COUNT,
        phase=_TEXT,
        sinks={**_TEXT, "description": "The sinks' types, in the manifest's order."},
        conditions={
            "type": "array",
            "items": _CONDITION,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
        epoch=_COUNT,
        driver=_fields(podName=_TEXT, podUID=_TEXT, phase=_TEXT, startTime=_TIME, exitCode={"type": "integer"}),
        executors=_fields(desired=_COUNT, running=_COUNT, pending=_COUNT, failed=_COUNT),
        commit=_fields(
            lastCheckpoint=_COUNT,
            lastCommitTime=_TIME,
            pending=_COUNT,
            inDoubt=_COUNT,
            rowsCommitted=_COUNT,
            retried=_TEXT,  # <revision>/<restartNonce> for which held checkpoints were tried again
            sinks={
                "type": "object",
                "maxProperties": SINKS_MAX,
                "additionalProperties": _fields(committed=_COUNT, rows=_COUNT),
            },
        ),
        restarts=_fields(
            total=_COUNT,
            consecutiveFailures=_COUNT,
            lastCause=_TEXT,
            nextRestartTime=_TIME,
            lastEnd=_END,
            lastCommitEnd=_END,
        ),
        failure=_fields(
            epoch=_COUNT,
            reason=_TEXT,
            message=_TEXT,
            advice=_TEXT,
            path=_TEXT,
            logTail=_TEXT,
            exitCode={"type": "integer"},
        ),
        lastHandledAction=_fields(id=_TEXT, action=_TEXT, result=_TEXT, time=_TIME),
    ),
}


def _column(name: str, kind: str, path: str, *, wide: bool = False) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path}
    return {**column, "priority": 1} if wide else column


# A path that picks several values shows the first of them alone, so the sinks come from the status as one text.
COLUMNS = [
    _column("Phase", "string", ".status.phase"),
    _column("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
    _column("Sinks", "string", ".status.sinks"),
    _column("Last-Commit", "date", ".status.commit.lastCommitTime"),
    _column("Pending", "integer", ".status.commit.pending"),
    _column("Epoch", "integer", ".status.epoch"),
    _column("Restarts", "integer", ".status.restarts.total"),
    _column("Age", "date", ".metadata.creationTimestamp"),
    _column("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', wide=True),
    _column("Driver", "string", ".status.driver.podName", wide=True),
    _column("Checkpoint", "integer", ".status.commit.lastCheckpoint", wide=True),
    _column("In-Doubt", "integer", ".status.commit.inDoubt", wide=True),
    _column("Message", "string", '.status.conditions[?(@.type=="Ready")].message', wide=True),
]
