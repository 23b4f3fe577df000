"""The API server of Kubernetes: the only way to it for operator, driver and committer pod.

Objects are plain dictionaries, as the server gives them. Every call has a time limit, says by the class of its error
whether it can have had an effect, and is counted. Nothing here decides or repeats: a caller that wants another try
makes it. Only `transport` imports the client library, and only when a connection is opened.
"""

from sinkruntime.kube.client import Api
from sinkruntime.kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Unanswered,
    Unavailable,
)
from sinkruntime.kube.kinds import (
    CONFIG_MAP,
    CONTROLLER_REVISION,
    EVENT,
    LEASE,
    NAMESPACE,
    POD,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    SINK_JOB,
    Kind,
    Object,
)
from sinkruntime.kube.settings import ApiSettings
from sinkruntime.kube.watch import Watch

__all__ = [
    "CONFIG_MAP",
    "CONTROLLER_REVISION",
    "EVENT",
    "LEASE",
    "NAMESPACE",
    "POD",
    "ROLE",
    "ROLE_BINDING",
    "SECRET",
    "SERVICE",
    "SERVICE_ACCOUNT",
    "SINK_JOB",
    "AlreadyExists",
    "Api",
    "ApiError",
    "ApiSettings",
    "Conflict",
    "Forbidden",
    "Gone",
    "Invalid",
    "Kind",
    "NotFound",
    "Object",
    "Unanswered",
    "Unavailable",
    "Watch",
]
