"""What an operator does while the API server is away, and while Kopf's watch tells nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sinkoperator import names
from sinkoperator.handlers import Hints
from sinkruntime.environment import Environment
from sinkruntime.kube import POD, SINK_JOB, Api, ApiError, Object
from tests.kube.control_plane import ControlPlane
from tests.kube.operator_process import operator, until
from tests.kube.operator_world import Kubelet, Looker, manifest


@pytest.mark.slow
async def test_an_api_server_that_is_away_costs_nothing(
    control_plane: ControlPlane, api: Api, namespace: str, kubeconfig: Path, tmp_path: Path
) -> None:
    if kubeconfig != control_plane.kubeconfig:
        pytest.skip("by design: an API server that others use is not killed")
    with operator(kubeconfig, namespace, tmp_path / "log") as process:
        await api.create(SINK_JOB, namespace, manifest())

        async def first() -> bool:
            return await api.get(POD, namespace, names.driver_name("one", 1)) is not None

        await until(first)
        control_plane.apiserver.kill()
        await asyncio.sleep(25)  # longer than the Lease: this replica loses all, and joins again
        assert process.lives
        await asyncio.to_thread(control_plane.start_apiserver)
        kubelet = Kubelet(api, namespace, names.driver_name("one", 1))
        await kubelet.runs()
        await kubelet.ends(1)

        async def second() -> bool:
            try:
                return await api.get(POD, namespace, names.driver_name("one", 2)) is not None
            except ApiError:
                return False

        await until(second)
        assert process.lives
        pods, _ = await api.list(POD, namespace)
        assert len(pods) == 2
        assert "Traceback" not in process.said()


async def test_kopf_tells_of_each_change_and_begins_anew(
    kubeconfig: Path, api: Api, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    told: list[tuple[str, str]] = []

    def hear(event: str, body: Object) -> None:
        told.append((event, body["metadata"]["name"]))

    hints = Hints([namespace], hear, Environment.real())
    running = asyncio.create_task(hints.run())
    try:
        await api.create(SINK_JOB, namespace, manifest("one"))
        await until(lambda: heard(told, "one"))
        hints.restart()
        await until(lambda: started(hints, 2))
        await api.create(SINK_JOB, namespace, manifest("two"))
        await until(lambda: heard(told, "two"))
        await api.delete(SINK_JOB, namespace, "two")
        await until(lambda: heard(told, "two", "DELETED"))
    finally:
        running.cancel()
        await asyncio.wait([running])
    job = await api.get(SINK_JOB, namespace, "one")
    assert job is not None
    assert "finalizers" not in job["metadata"], "Kopf writes nothing"
    assert not job["metadata"].get("annotations")


async def heard(told: list[tuple[str, str]], name: str, event: str = "") -> bool:
    """Whether a hint has come."""
    return any(each == name and event in ("", kind) for kind, each in told)


async def started(hints: Hints, times: int) -> bool:
    """Whether Kopf was started so often."""
    return hints.starts >= times


async def test_a_change_that_no_hint_told_of_is_found_by_the_list(api: Api, namespace: str) -> None:
    """A looker has no hints at all: what it knows comes from its lists."""
    await api.create(SINK_JOB, namespace, manifest("one"))
    async with Looker(api, namespace) as looker:
        assert looker.world.unheard() == frozenset()
        await api.create(SINK_JOB, namespace, manifest("two"))
        await api.patch(SINK_JOB, namespace, "one", {"spec": {"suspend": True}})
        await looker.world.relist()

        assert looker.world.unheard() == {(namespace, "one"), (namespace, "two")}
        body = await api.get(SINK_JOB, namespace, "one")
        assert body is not None
        looker.world.see("MODIFIED", body)
        assert looker.world.unheard() == {(namespace, "two")}


async def test_an_old_hint_does_not_undo_what_is_known(api: Api, namespace: str) -> None:
    old = await api.create(SINK_JOB, namespace, manifest("one"))
    async with Looker(api, namespace) as looker:
        key = (namespace, "one")
        after = await api.patch(SINK_JOB, namespace, "one", {"spec": {"suspend": True}})
        looker.world.keep(after)
        looker.world.see("MODIFIED", old)
        known = looker.world.job(key)
        assert known is not None
        assert known["spec"]["suspend"] is True

        await api.delete(SINK_JOB, namespace, "one")
        again = await api.create(SINK_JOB, namespace, manifest("one"))
        looker.world.see("ADDED", again)
        looker.world.see("DELETED", old)
        known = looker.world.job(key)
        assert known is not None
        assert known["metadata"]["uid"] == again["metadata"]["uid"]
