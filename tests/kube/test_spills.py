"""Payloads in a job's own storage, as the operator reaches them: by the job's keys, and by allowed hosts only."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sinkoperator.commits.egress import Egress
from sinkoperator.commits.nursery import Nursery
from sinkoperator.commits.pool import Pool
from sinkoperator.commits.settings import WorkerSettings
from sinkoperator.spills import JobSpill
from sinkoperator.world import World
from sinkruntime.environment import SystemClock
from sinkruntime.errors import LedgerCorrupt, SinkjobError
from sinkruntime.kube import SECRET, SINK_JOB, Api
from tests.kube.operator_world import manifest
from tests.kube.test_commits import bucket
from tests.servers.s3 import S3Server

__all__ = ["bucket"]
pytestmark = [pytest.mark.integration]


async def apply(api: Api, namespace: str, server: S3Server, bucket: str) -> None:
    """A job whose checkpoint location needs keys from a Secret."""
    keys = {
        "fs.s3a.access.key": server.access_key,
        "fs.s3a.secret.key": server.secret_key,
        "fs.s3a.endpoint": server.endpoint,
        "fs.s3a.endpoint.region": server.region,
        "fs.s3a.path.style.access": "true",
    }
    data = {key: base64.b64encode(value.encode()).decode() for key, value in keys.items()}
    await api.create(SECRET, namespace, {"metadata": {"name": "keys"}, "data": data})
    location = {"location": f"s3a://{bucket}/checkpoint", "optionsFrom": [{"secretRef": {"name": "keys"}}]}
    await api.create(SINK_JOB, namespace, manifest(checkpoint=location))


@asynccontextmanager
async def spilling(api: Api, namespace: str, egress: Egress) -> AsyncIterator[JobSpill]:
    """The storage as an operator with these rules reaches it."""
    settings = WorkerSettings(workers=2, egress=egress)
    nursery = Nursery(settings)
    pool = Pool(nursery, settings, SystemClock())
    try:
        async with World(api, [namespace], lambda key, component: None) as world:
            await world.relist()
            await nursery.start()
            yield JobSpill(api, world, (namespace, "one"), pool)
            assert pool.workers == (), "each use has a process of its own"
    finally:
        await pool.stop()
        await nursery.stop()


async def test_a_payload_goes_to_the_jobs_storage_and_back(
    api: Api, namespace: str, s3_server: S3Server, bucket: str
) -> None:
    await apply(api, namespace, s3_server, bucket)
    async with spilling(api, namespace, Egress.parse(["127.0.0.0/8"])) as spill:
        content = b"x" * (5 * 1024 * 1024)
        await spill.write("1-abc", content)
        assert await spill.read("1-abc") == content
        await spill.remove("1-abc")
        with pytest.raises(LedgerCorrupt, match="1-abc"):
            await spill.read("1-abc")


async def test_a_host_that_may_not_be_reached_is_not_called(
    api: Api, namespace: str, s3_server: S3Server, bucket: str
) -> None:
    await apply(api, namespace, s3_server, bucket)
    async with spilling(api, namespace, Egress()) as spill:
        with pytest.raises(SinkjobError, match="EgressRefused") as caught:
            await spill.write("1-abc", b"x")
        assert "spec.checkpoint.location" in str(caught.value)


async def test_a_missing_secret_is_named_and_none_of_the_operators_own_is_used(
    api: Api, namespace: str, s3_server: S3Server, bucket: str
) -> None:
    await apply(api, namespace, s3_server, bucket)
    await api.delete(SECRET, namespace, "keys")
    async with spilling(api, namespace, Egress()) as spill:
        with pytest.raises(SinkjobError, match="no Secret `keys`"):
            await spill.read("1-abc")
