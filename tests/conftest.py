"""Rules that all tests share: time limits by marker, no silent skip in CI, Spark's own leaks forgiven.

Loaded by pytest. Holds no fixture of a server: those are in `tests/servers/`, loaded here as plugins.
"""

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TypeVar

import hypothesis
import pytest

# Helpers beside the tests assert too; their messages shall be as good.
pytest.register_assert_rewrite(
    *(f"tests.{folder.name}" for folder in Path(__file__).parent.iterdir() if folder.is_dir())
)

pytest_plugins = [
    "tests.servers.certificates",
    "tests.servers.hive_metastore",
    "tests.servers.hudi_reader",
    "tests.servers.iceberg_rest",
    "tests.servers.iceberg_spark",
    "tests.servers.kafka",
    "tests.servers.mariadb",
    "tests.servers.paimon",
    "tests.servers.paimon_java",
    "tests.servers.postgresql",
    "tests.servers.s3",
    "tests.servers.schema_registry",
    "tests.servers.toxiproxy",
    "tests.sinks.jdbc_fixtures",
]

# The longest limit of a test's markers holds. Tests without these markers keep the `timeout` of pyproject.toml.
TIMEOUT_SECONDS = {"spark": 180, "integration": 180, "kube": 180, "slow": 600, "e2e": 1800}
BY_DESIGN = "by design: "
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

# A deadline per example fails on a busy machine; the time limit of the whole test stays.
hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", parent=hypothesis.settings.get_profile("default"), derandomize=True)


def in_ci() -> bool:
    """Whether the tests run in CI, where nothing may be left out."""
    return os.environ.get("CI", "").lower() in ("1", "true")


hypothesis.settings.load_profile("ci" if in_ci() else "default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives longer time limits by marker, unless a test names its own."""
    for item in items:
        limits = [seconds for marker, seconds in TIMEOUT_SECONDS.items() if item.get_closest_marker(marker)]
        if limits and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(max(limits)))
        if item.get_closest_marker("spark"):
            # PySpark leaves the sockets of collect() and of its callbacks to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(autouse=True)
def _collect_sparks_sockets(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collects what a Spark test left while its warnings are still forgiven, not in the next test."""
    yield
    if request.node.get_closest_marker("spark"):
        gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns a skip into a failure in CI."""
    return fail_if_skipped_in_ci((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turns the skip of a whole module into a failure in CI."""
    return fail_if_skipped_in_ci((yield))


def fail_if_skipped_in_ci(report: Report) -> Report:
    """A skip in CI hides a missing server or program: only a reason that begins with `by design: ` passes."""
    if not (in_ci() and report.outcome == "skipped") or hasattr(report, "wasxfail"):
        return report
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not reason.removeprefix("Skipped: ").startswith(BY_DESIGN):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where nothing may be missing: {reason}"
    return report
