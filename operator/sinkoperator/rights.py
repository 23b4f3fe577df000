"""What the operator must be allowed to do, and whether it is: asked of the API server once, before anything starts.

The application calls `check`. The chart's roles grant exactly this; a right that is missing would else show up as a
job that does not start, hours later. It asks with SelfSubjectAccessReviews and changes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from sinkruntime.errors import ConfigurationError
from sinkruntime.kube import (
    CONFIG_MAP,
    CONTROLLER_REVISION,
    EVENT,
    POD,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE_ACCOUNT,
    SINK_JOB,
    Api,
    Kind,
)


@dataclass(frozen=True, slots=True)
class Right:
    """One verb on one kind, in each namespace whose jobs are run."""

    verb: str
    kind: Kind
    subresource: str = ""

    def __str__(self) -> str:
        part = f"/{self.subresource}" if self.subresource else ""
        group = f".{self.kind.group}" if self.kind.group else ""
        return f"{self.verb} {self.kind.plural}{part}{group}"


def _each(kind: Kind, *verbs: str) -> tuple[Right, ...]:
    return tuple(Right(verb, kind) for verb in verbs)


#: In the namespaces of jobs. Secrets are read one by one, by name: never listed, never watched. Some of those on pods
#: and ConfigMaps are never used here: the Role of a job's own pods has them, and nobody may grant what he has not.
RIGHTS: tuple[Right, ...] = (
    *_each(SINK_JOB, "get", "list", "watch", "patch", "delete"),
    Right("patch", SINK_JOB, "status"),
    *_each(CONFIG_MAP, "get", "list", "watch", "create", "update", "patch", "delete"),
    *_each(POD, "get", "list", "watch", "create", "patch", "delete", "deletecollection"),
    Right("get", POD, "log"),
    *_each(CONTROLLER_REVISION, "get", "list", "watch", "create", "patch", "delete"),
    *_each(SECRET, "get"),
    *_each(EVENT, "create", "patch"),
    *_each(ROLE, "get", "create", "patch"),
    *_each(ROLE_BINDING, "get", "create", "patch"),
    *_each(SERVICE_ACCOUNT, "get", "create"),
)


async def check(api: Api, namespaces: Sequence[str]) -> None:
    """Raises `ConfigurationError` with all rights that are missing; `ApiError` where the server cannot be asked."""
    missing: list[str] = []
    for namespace in namespaces or ("",):
        where = f" in namespace {namespace}" if namespace else " in all namespaces"
        missing += [f"{right}{where}" async for right in _missing(api, namespace)]
    if missing:
        message = "this service account lacks rights:\n" + "\n".join(f"  {each}" for each in missing)
        raise ConfigurationError("RightMissing", message, advice="Grant them, as the chart's roles do.")


async def _missing(api: Api, namespace: str) -> AsyncIterator[Right]:
    for right in RIGHTS:
        if not await api.allowed(right.verb, right.kind, namespace, subresource=right.subresource):
            yield right
