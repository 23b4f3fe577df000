"""A real API server for the tests in this folder, with our CRD, and an `Api` that talks to it.

The server is that of SINKJOB_TEST_KUBECONFIG, else one of our own (see `control_plane`); where neither can be had the
tests are skipped, which is a failure in CI. Tests may be coroutines: they run in the loop of their `runner`.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sinkruntime.kube import CONFIG_MAP, NAMESPACE, SINK_JOB, Api, ApiSettings, Unanswered, Unavailable
from tests.kube.control_plane import ControlPlane, serve
from tests.kube.crd import serve_crd
from tests.servers.programs import CONTROL_PLANE, ProgramMissingError, locate


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder is a `kube` test."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.kube)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine in the loop of its `runner`."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    runner = pyfuncitem.funcargs["runner"]
    assert isinstance(runner, asyncio.Runner)
    names = pyfuncitem._fixtureinfo.argnames
    runner.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(autouse=True)
def runner() -> Iterator[asyncio.Runner]:
    """The loop of one test; a fixture that needs it runs coroutines with `runner.run`."""
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Our own control plane, whose API server a test may kill and hold."""
    try:
        for program in CONTROL_PLANE:
            locate(program)
    except ProgramMissingError as error:
        pytest.skip(f"missing server: {error}")
    with serve(tmp_path_factory.mktemp("control-plane")) as plane:
        asyncio.run(serve_crd(plane.kubeconfig))
        yield plane


@pytest.fixture(scope="session")
def named_cluster() -> Path | None:
    """The cluster that SINKJOB_TEST_KUBECONFIG names, with our CRD; None where none is named."""
    named = os.environ.get("SINKJOB_TEST_KUBECONFIG", "")
    if not named:
        return None
    asyncio.run(serve_crd(Path(named)))
    return Path(named)


@pytest.fixture
def kubeconfig(request: pytest.FixtureRequest, named_cluster: Path | None) -> Path:
    """A cluster with our CRD, as cluster-admin: the named one, else our own; for a test that needs the control plane
    itself (its address, its processes) our own."""
    if named_cluster is not None and "control_plane" not in request.fixturenames:
        return named_cluster
    plane: ControlPlane = request.getfixturevalue("control_plane")
    return plane.kubeconfig


@pytest.fixture
def api(kubeconfig: Path, runner: asyncio.Runner) -> Iterator[Api]:
    """An `Api` with the default settings."""
    made = runner.run(Api.connect(ApiSettings(kubeconfig=str(kubeconfig))))
    yield made
    runner.run(made.close())


@pytest.fixture
def namespace(api: Api, runner: asyncio.Runner) -> Iterator[str]:
    """A namespace of the test's own; its deletion is not waited for."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    runner.run(api.create(NAMESPACE, "", {"metadata": {"name": name}}))
    yield name
    runner.run(_remove(api, name))


async def _remove(api: Api, namespace: str) -> None:
    """Again where the server, which the test may have killed, drops a connection of before."""
    try:
        await api.delete(NAMESPACE, "", namespace)
    except (Unanswered, Unavailable):
        await api.delete(NAMESPACE, "", namespace)
    free: dict[str, Any] = {"metadata": {"finalizers": None}}
    for kind in (CONFIG_MAP, SINK_JOB):
        for found in (await api.list(kind, namespace))[0]:
            if found["metadata"].get("finalizers"):
                await api.patch(kind, namespace, found["metadata"]["name"], free)
