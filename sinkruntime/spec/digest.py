"""Names a revision of a job: the same name for the same work, on every machine and in every later release.

Called by the driver (a decision names the revision it was made under) and by the operator (a new revision restarts the
driver). A `Batch` job is run once per revision, so a revision must not change by itself.
"""

import hashlib
import json
from typing import Any

from sinkruntime.spec.models import SinkJobSpec

# What says how a job is looked after, and not what it does; changing these restarts nothing.
# `restartNonce` is among them: it and the revision together are the identity of a Batch job.
NOT_OF_A_REVISION = frozenset(
    {
        "suspend", "restart_nonce", "recovery", "restart_policy", "upgrade",
        "deletion_policy", "deletion_timeout", "ttl_seconds_after_finished",
    }
)  # fmt: skip

REVISION_LENGTH = 16


def revision(spec: SinkJobSpec) -> str:
    """The name of what the job does: 16 hexadecimal digits."""
    return _digest(spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=set(NOT_OF_A_REVISION)))


def sinks_revision(spec: SinkJobSpec) -> str:
    """The name of the sinks alone: a revision that leaves it as it was need not wait for pending checkpoints."""
    return _digest(spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, include={"sinks"}))


def _digest(value: Any) -> str:
    """Defaults are left out, so a field that a later release adds does not rename every job."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:REVISION_LENGTH]
