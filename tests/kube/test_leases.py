"""Replicas share shards over the Leases of a real API server: takeover, handing over, missing rights, echo."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sinkoperator.health import Health, HealthSettings
from sinkoperator.leases import VERBS, Leases
from sinkoperator.membership import LeaseSettings
from sinkruntime.environment import Environment
from sinkruntime.errors import ConfigurationError
from sinkruntime.kube import LEASE, ROLE, ROLE_BINDING, SERVICE_ACCOUNT, Api, ApiSettings
from tests.kube.control_plane import ControlPlane

SHARDS = 16


@dataclass
class Work:
    """A worker that does nothing, and writes down when."""

    story: list[tuple[float, str, Any]] = field(default_factory=list)

    def taken(self, shard: int) -> None:
        self.story.append((time.monotonic(), "taken", shard))

    async def stop(self, shard: int) -> None:
        self.story.append((time.monotonic(), "stop", shard))

    def lost(self, shards: frozenset[int]) -> None:
        self.story.append((time.monotonic(), "lost", shards))


@dataclass
class Replica:
    leases: Leases
    work: Work
    run: asyncio.Task[None]

    async def kill(self) -> None:
        """As SIGKILL would: nothing more is written."""
        self.run.cancel()
        await asyncio.wait([self.run])


@asynccontextmanager
async def replica(kubeconfig: Path, namespace: str, name: str) -> AsyncIterator[Replica]:
    async with await Api.connect(ApiSettings(kubeconfig=str(kubeconfig))) as api:
        work = Work()
        settings = LeaseSettings(namespace, name, f"uid-of-{name}", SHARDS)
        leases = Leases(api, settings, Environment.real(), work)
        async with api.watch(LEASE, namespace) as watch:
            watch.subscribe(leases.hint)
            made = Replica(leases, work, asyncio.create_task(leases.run()))
            try:
                yield made
            finally:
                await made.kill()


async def until(done: Callable[[], bool], seconds_max: float) -> float:
    began = time.monotonic()
    while not done():
        assert time.monotonic() - began < seconds_max
        await asyncio.sleep(0.02)
    return time.monotonic() - began


@pytest.mark.slow
async def test_a_killed_replicas_shards_are_taken_over_within_the_lease_duration_and_5_s(
    kubeconfig: Path, namespace: str
) -> None:
    async with replica(kubeconfig, namespace, "first") as first, replica(kubeconfig, namespace, "second") as second:
        await until(lambda: (len(first.leases.held), len(second.leases.held)) == (8, 8), 20.0)
        await first.kill()
        took = await until(lambda: len(second.leases.held) == SHARDS, 30.0)
        assert 10.0 < took <= 20.0, "not before the lease could expire, and not later than promised"
        assert [what for _, what, _ in second.work.story if what == "lost"] == []


async def test_a_replica_that_leaves_hands_over_at_once(kubeconfig: Path, namespace: str, api: Api) -> None:
    async with replica(kubeconfig, namespace, "first") as first, replica(kubeconfig, namespace, "second") as second:
        await until(lambda: (len(first.leases.held), len(second.leases.held)) == (8, 8), 20.0)
        before = len(first.work.story)  # it may have held them all, and given half of them back
        first.leases.leave()
        await asyncio.wait_for(first.run, 10.0)
        assert await until(lambda: len(second.leases.held) == SHARDS, 10.0) < 1.5, "a watch shows it, no look is due"
        assert [what for _, what, _ in first.work.story[before:]].count("stop") == 8
        leases, _ = await api.list(LEASE, namespace)
        assert sum("replica" in lease["metadata"]["name"] for lease in leases) == 1
        holders = {lease["spec"]["holderIdentity"] for lease in leases}
        assert {f"sinkjob-replica-{holder}" for holder in holders} == {second.leases.own_lease}


async def test_leases_deleted_by_hand_are_made_again(kubeconfig: Path, namespace: str, api: Api) -> None:
    async with replica(kubeconfig, namespace, "alone") as alone:
        await until(lambda: len(alone.leases.held) == SHARDS, 10.0)
        before = alone.leases.own_lease
        for lease in (await api.list(LEASE, namespace))[0]:
            await api.delete(LEASE, namespace, lease["metadata"]["name"])
        await until(lambda: alone.leases.own_lease not in ("", before), 10.0)
        await until(lambda: len(alone.leases.held) == SHARDS, 10.0)


async def test_each_renewal_is_a_change_that_a_watch_shows(kubeconfig: Path, namespace: str, api: Api) -> None:
    """The health check counts on it; and a watch that has died is found out by it."""
    async with replica(kubeconfig, namespace, "alone") as alone:
        health = Health(alone.leases, Environment.real(), HealthSettings(echo_seconds=4.0))
        seen: list[str] = []

        def take(kind: str, lease: dict[str, Any]) -> None:
            if lease["metadata"]["name"] == alone.leases.own_lease:
                seen.append(lease["spec"]["renewTime"])

        async with api.watch(LEASE, namespace) as watch:
            watch.subscribe(take)
            watch.subscribe(health.lease_seen)
            await until(lambda: len(set(seen)) >= 4, 12.0)
            assert seen == sorted(seen)
            assert health.alive().good
            assert health.alive().facts["echo_age_seconds"] < 3.0
        await until(lambda: not health.alive().good, 8.0)
        assert alone.leases.lives


@pytest.mark.parametrize("missing", VERBS)
async def test_a_missing_right_is_named_at_the_start(
    api: Api, namespace: str, control_plane: ControlPlane, missing: str
) -> None:
    rules = [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": [v for v in VERBS if v != missing]}
    ]
    await api.create(SERVICE_ACCOUNT, namespace, {"metadata": {"name": "operator"}})
    await api.create(ROLE, namespace, {"metadata": {"name": "operator"}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "operator", "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"}
    binding = {"metadata": {"name": "operator"}, "roleRef": role, "subjects": [subject]}
    await api.create(ROLE_BINDING, namespace, binding)
    token = await api.token(namespace, "operator", audience="", seconds=600)
    limited = control_plane.kubeconfig_for(control_plane.address, token, name=f"operator-{missing}")
    async with await Api.connect(ApiSettings(kubeconfig=str(limited))) as operator:
        settings = LeaseSettings(namespace, "operator", "uid", SHARDS)
        leases = Leases(operator, settings, Environment.real(), Work())
        with pytest.raises(ConfigurationError, match=f"may not {missing} leases.coordination.k8s.io"):
            await asyncio.wait_for(leases.run(), 10.0)
