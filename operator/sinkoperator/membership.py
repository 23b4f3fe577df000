"""This replica's own Lease, for one tenure: made, renewed, and given up before anybody else can think it expired.

`leases` makes one for each tenure. Every tenure has a Lease with a name like no other, so no other process writes to
it, a request that arrives late does no harm, and a tenure that has ended never comes back to life. It decides nothing
about shards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from sinkoperator.shards import Names
from sinkruntime.environment import Environment
from sinkruntime.errors import ConfigurationError
from sinkruntime.kube import LEASE, AlreadyExists, ApiError, Kind, NotFound, Object

log = logging.getLogger(__name__)

LABELS = {"app.kubernetes.io/managed-by": "sinkjob", "app.kubernetes.io/component": "operator"}
#: Whose Lease it is across tenures; see `LeaseSettings.instance`.
INSTANCE_ANNOTATION = "sinkjob.io/instance"


class LeaseApi(Protocol):
    """What is asked of `sinkruntime.kube.Api`."""

    async def list(self, kind: Kind, namespace: str = "") -> tuple[list[Object], str]: ...
    async def create(self, kind: Kind, namespace: str, body: Object) -> Object: ...
    async def patch(self, kind: Kind, namespace: str, name: str, body: Object) -> Object: ...
    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str = "") -> bool: ...
    async def allowed(self, verb: str, kind: Kind, namespace: str = "") -> bool: ...


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Times as Kubernetes' own leader election has them (client-go: 15 s, 10 s, 2 s).

    `replica` is the pod's name, for people. `instance` is the pod's uid: no two processes that live at the same time
    share it, so a process may remove what a former one of the same instance has left behind, at once.
    """

    namespace: str
    replica: str
    instance: str
    shards: int = 16
    lease_seconds: float = 15.0  # unchanged for so long, as others see it: its shards are free
    renew_deadline_seconds: float = 10.0  # not renewed for so long, as it sees itself: it stops
    retry_seconds: float = 2.0  # between renewals, and between looks at the shards
    stop_seconds: float = 20.0  # for the orderly end of a shard's work; then it is cut off
    prefix: str = "sinkjob"

    def __post_init__(self) -> None:
        if self.shards < 1:
            raise ConfigurationError("InvalidSettings", f"--shards is {self.shards}; at least 1 is needed")
        # client-go has the same two rules; the second leaves a deadline room for a second try.
        if not 0 < 1.2 * self.retry_seconds <= self.renew_deadline_seconds < self.lease_seconds:
            raise ConfigurationError(
                "InvalidSettings",
                f"lease {self.lease_seconds:g} s, renew deadline {self.renew_deadline_seconds:g} s, "
                f"retry {self.retry_seconds:g} s: a replica could not stop before others take over",
                advice="Make the lease longer than the renew deadline, and that at least 1.2 times the retry period.",
            )

    @property
    def request_seconds(self) -> float:
        """The time limit of one request: half of the deadline, so that a lost one can be followed by another."""
        return self.renew_deadline_seconds / 2

    @property
    def names(self) -> Names:
        """Of the Leases."""
        return Names(self.prefix)


class Membership:
    """One tenure. `live` is to be asked before every piece of work that only a living replica may begin."""

    def __init__(self, api: LeaseApi, settings: LeaseSettings, environment: Environment) -> None:
        self._api = api
        self._settings = settings
        self._environment = environment
        self.identity = f"{settings.replica}-{environment.identity()[:8]}"
        self.lease = settings.names.replica(self.identity)
        self._deadline = float("-inf")
        self._ended = False
        self._written = 0  # microseconds since 1970, in the last renewal

    def live(self) -> bool:
        """Whether nobody can take this replica for dead, by its own monotonic clock at this instant.

        Counted from before the last successful renewal was *sent*: whatever a request took is not counted twice.
        """
        return not self._ended and self._environment.clock.monotonic() < self._deadline

    def end(self) -> None:
        """From now on it does not live."""
        self._ended = True

    async def join(self) -> None:
        """Make the Lease. Raises `ApiError` or `TimeoutError`; may be called again after them."""
        sent = self._environment.clock.monotonic()
        try:
            async with asyncio.timeout(self._settings.request_seconds):
                await self._api.create(LEASE, self._settings.namespace, self._body())
        except AlreadyExists:  # by an earlier call whose answer was lost: nobody else has this name
            async with asyncio.timeout(self._settings.request_seconds):
                await self._renew()
            return
        self._deadline = sent + self._settings.renew_deadline_seconds

    async def keep(self) -> str:
        """Renew until that is not possible any more. The answer says why; `live` is False by then."""
        clock, settings = self._environment.clock, self._settings
        reason = f"its Lease could not be renewed for {settings.renew_deadline_seconds:g} s"
        sent = clock.monotonic()
        while self.live():
            # From one request to the next, so that slow answers do not make renewals rare.
            wait_seconds = min(sent + settings.retry_seconds, self._deadline) - clock.monotonic()
            await asyncio.sleep(max(0.0, wait_seconds))
            sent = clock.monotonic()
            left = self._deadline - sent
            try:
                async with asyncio.timeout(min(settings.request_seconds, max(0.0, left))):
                    await self._renew()
            except NotFound:
                reason = "its Lease was deleted"
                break
            except (ApiError, TimeoutError) as error:
                log.warning("the Lease %s was not renewed, %.1f s are left: %s", self.lease, left, _text(error))
        self.end()
        return reason

    async def delete(self) -> None:
        """Remove the Lease, after all work has ended: this one write frees all of its shards. Errors are only told:
        others find out by themselves, later."""
        self.end()
        try:
            async with asyncio.timeout(self._settings.request_seconds):
                await self._api.delete(LEASE, self._settings.namespace, self.lease)
        except (ApiError, TimeoutError) as error:
            log.warning("the Lease %s was not deleted, its shards wait for it to expire: %s", self.lease, _text(error))

    async def _renew(self) -> None:
        sent = self._environment.clock.monotonic()
        body = {"spec": {"holderIdentity": self.identity, "renewTime": self._now()}}
        await self._api.patch(LEASE, self._settings.namespace, self.lease, body)
        # An answer that was read after the deadline does not count: what has ended stays ended.
        if self._deadline == float("-inf") or self.live():
            self._deadline = sent + self._settings.renew_deadline_seconds

    def _now(self) -> str:
        """For people, and so that each renewal is a change, even where the wall clock stands still or goes back."""
        self._written = max(self._written + 1, int(self._environment.clock.wall() * 1_000_000))
        return datetime.fromtimestamp(self._written // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + (
            f"{self._written % 1_000_000:06}Z"
        )

    def _body(self) -> Object:
        settings = self._settings
        return {
            "metadata": {
                "name": self.lease,
                "labels": dict(LABELS),
                "annotations": {INSTANCE_ANNOTATION: settings.instance},
            },
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": max(1, round(settings.lease_seconds)),
                "renewTime": self._now(),
            },
        }


def instance_of(body: Mapping[str, Any]) -> str:
    """Which instance made this Lease; "" where it does not say."""
    annotations = body["metadata"].get("annotations") or {}
    return str(annotations.get(INSTANCE_ANNOTATION) or "")


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
