"""Whole operators as processes: a decided checkpoint is committed, and any of them may die at any instant."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from sinkoperator import names
from sinkruntime.kube import LEASE, POD, SECRET, SINK_JOB, Api, Object
from tests.kube.dying_operator import KILLED
from tests.kube.operator_process import FAILOVER_SECONDS, Job, Process, operator, until
from tests.kube.test_commits import bucket, rows_in
from tests.servers.process import free_port
from tests.servers.s3 import S3Server

__all__ = ["bucket"]
pytestmark = [pytest.mark.integration]


@pytest.fixture
def processes(kubeconfig: Path, namespace: str, tmp_path: Path) -> Iterator[list[Process]]:
    """Two operators for the namespace of the test."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(operator(kubeconfig, namespace, tmp_path / f"{name}.log", "--identity", name))
            for name in ("first", "second")
        ]


@dataclass(frozen=True)
class Start:
    """Starts operators in a test's namespace."""

    api: Api
    namespace: str
    kubeconfig: Path
    log: Path

    def operator(
        self, *more: str, module: str = "sinkoperator", **environ: str
    ) -> contextlib.AbstractContextManager[Process]:
        """One of them."""
        return operator(self.kubeconfig, self.namespace, self.log, *more, module=module, **environ)


@pytest.fixture
def started(api: Api, namespace: str, kubeconfig: Path, tmp_path: Path) -> Start:
    """How a test starts operators."""
    return Start(api, namespace, kubeconfig, tmp_path / "log")


async def holders(api: Api, namespace: str) -> dict[str, set[str]]:
    """The shards of each replica, by the replica's name."""
    found: dict[str, set[str]] = {}
    leases, _ = await api.list(LEASE, namespace)
    for lease in leases:
        holder = (lease.get("spec") or {}).get("holderIdentity")
        if "-shard-" in lease["metadata"]["name"] and holder:
            found.setdefault(holder.split("-")[0], set()).add(lease["metadata"]["name"])
    return found


async def page(port: int, path: str) -> tuple[int, str]:
    """What a page of the operator answers."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def test_a_decided_checkpoint_is_committed_and_told(started: Start, s3_server: S3Server, bucket: str) -> None:
    api, namespace = started.api, started.namespace
    job = Job(api, namespace, s3_server, bucket)
    health, metrics = free_port(), free_port()
    ports = ("--health-port", str(health), "--metrics-port", str(metrics), "--metrics-per-job")
    with started.operator(*ports) as process:
        await job.apply()
        await job.runs(1)
        await job.decide(1, [(1, "a"), (2, "b")], [(3, "c")])
        await job.settled(1)
        await job.decide(2, [(4, "d")])
        await job.settled(2)

        async def told() -> bool:
            status = await job.status()
            commit = status.get("commit", {})
            return (commit.get("lastCheckpoint"), commit.get("pending"), status["phase"]) == (2, 0, "Running")

        await until(told)
        assert (await job.status())["commit"]["rowsCommitted"] == 4
        alive, ready = await page(health, "/healthz"), await page(health, "/readyz")
        assert (alive[0], ready[0]) == (200, 200), (alive, ready)
        assert json.loads(alive[1])["lease"], "it has a Lease of its own"
        code, text = await page(metrics, "/metrics")
        assert code == 200
        labels = f'job="one",namespace="{namespace}",sink="lake"'
        rows = [line for line in text.splitlines() if line.startswith("sinkjob_rows_committed_total")]
        assert rows == [f"sinkjob_rows_committed_total{{{labels}}} 4.0"]
        process.signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.ends) == 0
        left = [lease["metadata"]["name"] for lease in (await api.list(LEASE, namespace))[0]]
        assert not [name for name in left if "replica" in name], left
        assert s3_server.secret_key not in process.said()
    assert await asyncio.to_thread(rows_in, s3_server, bucket) == [1, 2, 3, 4]


async def test_the_jobs_of_a_killed_replica_are_taken_over(
    api: Api, namespace: str, processes: list[Process], s3_server: S3Server, bucket: str
) -> None:
    jobs = [Job(api, namespace, s3_server, bucket, f"job-{number}") for number in range(3)]
    pods: dict[str, set[str]] = {}

    def note(event: str, pod: Object) -> None:
        pods.setdefault(pod["metadata"]["name"], set()).add(pod["metadata"]["uid"])

    async def shared() -> bool:
        return sorted(len(shards) for shards in (await holders(api, namespace)).values()) == [8, 8]

    async with api.watch(POD, namespace, labels=f"{names.MANAGED_BY_LABEL}={names.MANAGED_BY}") as watch:
        watch.subscribe(note)
        await until(shared)
        for job in jobs:
            await job.apply()
        for number, job in enumerate(jobs):
            await job.runs(1)
            await job.decide(1, [(100 * number + 1, "a")])
        for victim, survivor in ((0, 1), (1, 0)):
            processes[victim].kill()
            checkpoint = 2 + victim
            for number, job in enumerate(jobs):
                await job.decide(checkpoint, [(100 * number + checkpoint, "b")])

            async def taken(survivor: int = survivor) -> bool:
                found = await holders(api, namespace)
                return len(found.get(("first", "second")[survivor], ())) == 16

            assert await until(taken) <= FAILOVER_SECONDS
            for job in jobs:
                await job.settled(checkpoint)
            processes[victim].start()
            await until(shared)
        # A driver dies while nobody is there to see it.
        for process in processes:
            process.kill()
        await kill_driver(api, namespace, jobs[0])
        processes[0].start()
        await jobs[0].runs(2)
    assert all(len(uids) == 1 for uids in pods.values()), pods
    expected = [100 * number + checkpoint for number in range(3) for checkpoint in (1, 2, 3)]
    assert await asyncio.to_thread(rows_in, s3_server, bucket) == expected


async def kill_driver(api: Api, namespace: str, job: Job) -> None:
    """As when its node dies for good: the pod is simply gone."""
    name = names.driver_name(job.name, 1)
    await api.delete(POD, namespace, name, grace_seconds=0)


async def test_a_replica_that_sleeps_past_its_lease_wakes_up_without_a_job(
    api: Api, namespace: str, processes: list[Process], s3_server: S3Server, bucket: str
) -> None:
    job = Job(api, namespace, s3_server, bucket)

    async def shared() -> bool:
        return sorted(len(shards) for shards in (await holders(api, namespace)).values()) == [8, 8]

    async def taken() -> bool:
        return len((await holders(api, namespace)).get("second", ())) == 16

    await until(shared)
    await job.apply()
    await job.runs(1)
    processes[0].signal(signal.SIGSTOP)
    try:
        await until(taken, FAILOVER_SECONDS)
        await job.decide(1, [(1, "a")])
        await job.settled(1)
        token = (await job.ledger()).token
    finally:
        processes[0].signal(signal.SIGCONT)
    await until(shared)
    await job.decide(2, [(2, "b")])
    await job.settled(2)
    assert (await job.ledger()).token >= token
    assert all(process.lives for process in processes)
    assert await asyncio.to_thread(rows_in, s3_server, bucket) == [1, 2]


async def test_deletion_waits_for_the_pending_commits(started: Start, s3_server: S3Server, bucket: str) -> None:
    """The keys are gone when an operator starts, so a decided checkpoint stays pending; Drain waits for them."""
    api, namespace = started.api, started.namespace
    job = Job(api, namespace, s3_server, bucket)
    with started.operator() as process:
        await job.apply()
        await job.runs(1)
        right = await api.get(SECRET, namespace, "one-keys")
        assert right is not None
        process.kill()
        await api.delete(SECRET, namespace, "one-keys")
        await job.decide(1, [(1, "a")])
        await api.delete(SINK_JOB, namespace, "one")
        process.start()

        async def stopping() -> bool:
            pod = await api.get(POD, namespace, names.driver_name("one", 1))
            return pod is None or "deletionTimestamp" in pod["metadata"]

        await until(stopping)
        await kill_driver(api, namespace, job)

        async def draining() -> bool:
            return str((await job.status())["phase"]) == "Draining"

        await until(draining)
        assert (await job.ledger()).pending
        await api.create(SECRET, namespace, {"metadata": {"name": "one-keys"}, "data": right["data"]})

        async def gone() -> bool:
            return await api.get(SINK_JOB, namespace, "one") is None

        await until(gone)
    assert await asyncio.to_thread(rows_in, s3_server, bucket) == [1]


@pytest.mark.parametrize("dies", ["2 after", "4 before", "4 after", "9 before", "9 after", "11 after"])
async def test_a_process_that_dies_at_a_write_is_followed_by_one_that_goes_on(
    started: Start, s3_server: S3Server, bucket: str, dies: str
) -> None:
    api, namespace = started.api, started.namespace
    job = Job(api, namespace, s3_server, bucket)
    await job.apply()
    with started.operator(module="tests.kube.dying_operator", DIES=dies) as mortal:
        assert await asyncio.to_thread(mortal.ends) == KILLED
    with started.operator():
        await job.runs(1)
        await job.decide(1, [(1, "a")])
        await job.settled(1)
    pods, _ = await api.list(POD, namespace)
    assert [pod["metadata"]["name"] for pod in pods] == [names.driver_name("one", 1)]
    assert (await job.ledger()).epoch == 1
    assert await asyncio.to_thread(rows_in, s3_server, bucket) == [1]


async def test_a_target_whose_keys_are_missing_is_told_and_waited_for(
    started: Start, s3_server: S3Server, bucket: str
) -> None:
    """No driver may decide before `recover` has run, and that needs the target."""
    api, namespace = started.api, started.namespace
    job = Job(api, namespace, s3_server, bucket)
    with started.operator():
        await job.apply()
        secret = await api.get(SECRET, namespace, "one-keys")
        assert secret is not None
        wrong = {**secret["data"], "storage.secretKey": "d3Jvbmcta2V5LXRoYXQtaXMtbG9uZw=="}
        await api.patch(SECRET, namespace, "one-keys", {"data": wrong})

        async def told() -> bool:
            conditions = (await job.status()).get("conditions") or []
            return any(each["type"] == "CommitHealthy" and each["status"] == "False" for each in conditions)

        await until(told)
        await api.patch(SECRET, namespace, "one-keys", {"data": secret["data"]})
        await job.runs(1)
        await job.decide(1, [(1, "a")])
        await job.settled(1)
        assert "wrong-key" not in str(await job.body())
