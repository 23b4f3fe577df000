"""A cluster with the chart's release, the servers and a namespace under `restricted` Pod Security, for all tests here.

Skips where docker, kind, kubectl or helm is missing, which is a failure in CI.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import (
    HERE,
    KIND,
    OPERATOR_NAMESPACE,
    ROOT,
    Cluster,
    Json,
    cluster,
    install,
    start_servers,
    until,
)
from tests.e2e.lake import Lake, lake
from tests.servers.programs import HELM, KUBECTL, VERSITYGW, ProgramMissingError, locate

EXAMPLES = ROOT / "examples" / "kubernetes"
NAMESPACE = "data"
LOG_LINES = 40


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder is an `e2e` test."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster, with images and servers, and without the chart."""
    for program in (KIND, KUBECTL, HELM, VERSITYGW):
        try:
            locate(program)
        except ProgramMissingError as error:
            pytest.skip(f"missing program: {error}")
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode
    ):
        pytest.skip("missing server: docker does not answer")
    with cluster(tmp_path_factory.mktemp("cluster")) as made:
        start_servers(made, (HERE / "servers.yaml").read_text())
        yield made


@pytest.fixture(scope="session")
def release(bare_cluster: Cluster) -> Cluster:
    """The cluster with the chart installed, two replicas ready."""
    install(bare_cluster)
    return bare_cluster


@pytest.fixture(scope="session")
def bucket(bare_cluster: Cluster) -> Iterator[Lake]:
    """The bucket that the examples name."""
    with bare_cluster.forwarded("servers", "service/s3", 7070) as endpoint, lake(endpoint) as made:
        made.make()
        yield made


@pytest.fixture
def jobs(release: Cluster, request: pytest.FixtureRequest) -> Iterator[Jobs]:
    """The namespace of the jobs; what a test has left there is removed after it."""
    make_namespace(release)
    made = Jobs(release)
    release.apply(NAMESPACE, (EXAMPLES / "secrets.yaml").read_text())
    failed_before = request.session.testsfailed
    yield made
    if request.session.testsfailed > failed_before:
        print(made.story())
    for job in release.items("sj", "-n", NAMESPACE):
        made.delete(job["metadata"]["name"], at_once=True)


def make_namespace(made: Cluster) -> None:
    """The namespace of the jobs, under `restricted` Pod Security."""
    made.make_namespace(NAMESPACE, **{"pod-security.kubernetes.io/enforce": "restricted"})


class Jobs:
    """SinkJobs of one namespace, and what is seen of them."""

    def __init__(self, made: Cluster) -> None:
        self.cluster = made

    def apply(self, example: str) -> str:
        """Apply one of `examples/kubernetes`; returns the job's name."""
        text = (EXAMPLES / example).read_text()
        self.cluster.apply(NAMESPACE, text)
        return next(line.split("name: ")[1].rstrip("}") for line in text.splitlines() if line.startswith("metadata:"))

    def status(self, job: str) -> Json:
        """Its status; empty before the first."""
        found = self.cluster.get("sj", job, "-n", NAMESPACE)
        return (found or {}).get("status") or {}

    def committed(self, job: str, rows: int) -> Json:
        """Wait until this many rows are committed and nothing is pending; returns the status."""

        def look() -> Json | None:
            status = self.status(job)
            commit = status.get("commit") or {}
            assert status.get("phase") not in ("Failed", "Stalled"), f"{job} does not go on: {status.get('failure')}"
            done = commit.get("rowsCommitted", 0) >= rows and commit.get("pending") == 0
            return status if done else None

        return until(f"{rows} rows of {job} committed", look)

    def phase(self, job: str, wanted: str) -> Json:
        """Wait until the job is in this phase; returns the status."""

        def look() -> Json | None:
            status = self.status(job)
            return status if status.get("phase") == wanted else None

        return until(f"{job} is {wanted}", look)

    def pods(self, job: str, component: str) -> list[Json]:
        """Its pods of one component, `driver` or `executor`, that have not ended."""
        labels = f"sinkjob.io/job={job},app.kubernetes.io/component={component}"
        found = self.cluster.items("pods", "-n", NAMESPACE, "-l", labels)
        return [pod for pod in found if pod["status"].get("phase") not in ("Succeeded", "Failed")]

    def delete(self, job: str, *, at_once: bool = False) -> None:
        """Delete it and wait until it is gone; at once: without waiting for what is pending, and with its ledger."""
        if at_once:
            self.cluster.patch(NAMESPACE, job, {"deletionPolicy": "Orphan"})
        self.cluster.kubectl("-n", NAMESPACE, "delete", "sj", job, "--timeout=240s", seconds=250)
        if at_once:
            ledger = ("configmap", f"{job}-ledger", "-n", NAMESPACE)
            self.cluster.kubectl("patch", *ledger, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
            self.cluster.kubectl("delete", *ledger)

    def story(self) -> str:
        """What people would look at after a failure."""
        columns = self.cluster.kubectl("-n", NAMESPACE, "get", "sj,pods,configmaps", "-o", "wide")
        status = [str(job.get("status")) for job in self.cluster.items("sj", "-n", NAMESPACE)]
        names = [pod["metadata"]["name"] for pod in self.cluster.items("pods", "-n", NAMESPACE)]
        logs = [self.cluster.kubectl("-n", NAMESPACE, "logs", name, f"--tail={LOG_LINES}") for name in names]
        selector = ("-n", OPERATOR_NAMESPACE, "logs", "-l", "app.kubernetes.io/component=operator", "--prefix")
        return "\n".join([columns, *status, *logs, self.cluster.kubectl(*selector, f"--tail={LOG_LINES}")])
