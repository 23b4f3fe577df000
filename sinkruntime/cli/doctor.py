"""`sinkjob doctor`: is all there that a run needs? One line a check, with what to do where one fails.

It changes nothing unless it is told to resolve something: where something must be writable it asks the operating
system, and writes no file.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from sinkruntime.api import Sink
from sinkruntime.cli.display import make_display
from sinkruntime.cli.jobs import namespace_option, opened
from sinkruntime.cli.output import output_option, show
from sinkruntime.environment import SystemClock
from sinkruntime.errors import ExitCode, ManifestError, SinkjobError
from sinkruntime.job.sinks import make_sinks
from sinkruntime.local.inspection import ask_facts, ask_targets, read_ledger
from sinkruntime.local.settle import roll_back, settle
from sinkruntime.local.workspace import Workspace

#: Less free space than this beside the manifest is a failure: Spark's local state and staged files need room.
FREE_BYTES_MIN = 1 << 30
SPARK_SECONDS = 180.0
_START_SPARK = (
    "from pyspark.sql import SparkSession as S; s = S.builder.master('local[1]')"
    ".config('spark.ui.enabled', 'false').config('spark.driver.host', '127.0.0.1').getOrCreate(); "
    "n = s.range(10).count(); s.stop(); raise SystemExit(n != 10)"
)


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report."""

    name: str
    ok: bool
    found: str
    advice: str = ""


@click.command(short_help="Check what this machine, a job's paths and targets lack.")
@click.argument("job", metavar="[JOB]", required=False)
@namespace_option
@click.option("--spark", is_flag=True, help="Also start Spark and count ten rows; takes some ten seconds.")
@click.option(
    "--resolve",
    is_flag=True,
    help="First settle what a stopped JOB left in its targets: commit what its ledger knows, then roll back what it "
    "does not. What belongs to others is left alone.",
)
@click.option(
    "--roll-back",
    metavar="XID",
    multiple=True,
    help="First roll back this prepared transaction of another job or sink, as this command lists it.",
)
@output_option
@click.pass_context
def doctor(ctx: click.Context, /, job: str | None, namespace: str | None, output: str, **wishes: Any) -> None:
    """Check what this machine has and lacks: Python, PySpark, Java; with JOB also its paths and targets.

    Connects to the job's targets, lists the prepared transactions that they hold, and changes nothing unless
    --resolve or --roll-back asks for it. Ends with 1 if a check fails.
    """
    checks = list(_machine(wishes["spark"]))
    if job is None and (wishes["resolve"] or wishes["roll_back"]):
        raise click.UsageError("--resolve and --roll-back need a JOB")
    if job is not None:
        checks += _job(job, namespace, resolve=wishes["resolve"], names=wishes["roll_back"])
    text = "\n".join(_line(check) for check in checks)
    value: list[dict[str, Any]] = [
        {"check": c.name, "ok": c.ok, "found": c.found, "advice": c.advice} for c in checks
    ]  # fmt: skip
    show(output, value, text)
    ctx.exit(int(ExitCode.DONE if all(check.ok for check in checks) else ExitCode.FAILED))


def _line(check: Check) -> str:
    head = f"{'ok  ' if check.ok else 'FAIL'}  {check.name}: {check.found}"
    return head if check.ok or not check.advice else f"{head}\n      {check.advice}"


def _machine(spark: bool) -> Iterator[Check]:
    yield Check("Python", sys.version_info >= (3, 11), platform.python_version(), "Python 3.11 or later is needed")
    try:
        yield Check("PySpark", True, version("pyspark"))
    except PackageNotFoundError:
        yield Check("PySpark", False, "not installed", "pip install 'sinkjob[spark]'")
        return
    java = _java()
    yield java
    if spark and java.ok:
        yield _spark()


def _java() -> Check:
    from sinkruntime.spark.java import find_java

    try:
        java = find_java()
    except SinkjobError as error:
        return Check("Java", False, error.message, error.advice)
    return Check("Java", True, f"{java.version}, {java.program}")


def _spark() -> Check:
    """In a process of its own, so that a Spark that hangs or dies does no harm here."""
    command = [sys.executable, "-c", _START_SPARK]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SPARK_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Check("Spark", False, f"did not start within {SPARK_SECONDS:.0f} s", "look for a proxy or a firewall")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Check("Spark", False, f"does not start: {last}", "pyspark in this environment shows the whole message")
    return Check("Spark", True, "starts and counts ten rows")


def _job(job: str, namespace: str | None, *, resolve: bool, names: Sequence[str]) -> Iterator[Check]:
    try:
        with opened(job, namespace) as workspace:
            yield Check("manifest", True, f"{job} is valid, job {workspace.name}")
            yield from _settled(workspace, resolve, names)
            yield from _paths(workspace)
            yield from _targets(workspace)
    except ManifestError as error:
        yield Check("manifest", False, error.message.replace("\n", "\n      "), "sinkjob validate says the same")


def _paths(workspace: Workspace) -> Iterator[Check]:
    spec = workspace.job.manifest.job.spec
    source = spec.source.path
    if source and "://" not in source and not any(mark in source for mark in "*?[{"):
        ok = os.access(source, os.R_OK)
        there = "can be read" if ok else "cannot be read" if os.path.exists(source) else "does not exist"
        yield Check("source", ok, f"{source} {there}", "spec.source.path is relative to the manifest")
    for name, place in (("ledger's folder", str(workspace.root)), ("checkpoint", workspace.checkpoint_location)):
        if "://" in place:
            yield Check(name, True, f"{place}, not looked at: it is not on this machine")
            continue
        folder = _nearest(Path(place))
        ok = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
        yield Check(name, ok, f"{place} {'can' if ok else 'cannot'} be written", f"make {folder} writable for you")
    free = shutil.disk_usage(_nearest(workspace.root)).free
    advice = "free some space: staged rows and Spark's state lie there"
    yield Check("disk", free >= FREE_BYTES_MIN, f"{free / 2**30:.1f} GiB free beside the manifest", advice)
    try:
        ledger = read_ledger(workspace)
    except SinkjobError as error:
        yield Check("ledger", False, error.message, error.advice)
        return
    found = f"{ledger.decided} checkpoints decided, {len(ledger.pending)} pending" if ledger else "none: never run"
    yield Check("ledger", True, found)


def _settled(workspace: Workspace, resolve: bool, names: Sequence[str]) -> Iterator[Check]:
    """What `--resolve` and `--roll-back` did."""
    if resolve:
        with make_display(SystemClock()) as display:
            yield _done("resolve", lambda: settle(workspace, display))
    for name in names:
        yield _done("roll back", lambda: f"{name}, at {roll_back(_sinks(workspace), name)}")  # noqa: B023  (used at once)


def _done(name: str, act: Callable[[], str]) -> Check:
    try:
        said = act()
    except SinkjobError as error:
        return Check(name, False, error.message, error.advice)
    return Check(name, True, said)


def _sinks(workspace: Workspace) -> dict[str, Sink]:
    try:
        ledger = read_ledger(workspace)
    except SinkjobError:
        ledger = None  # the line about the ledger says so
    return make_sinks(workspace.job, ledger.ledger_id if ledger else "none")


def _nearest(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())


def _targets(workspace: Workspace) -> Iterator[Check]:
    sinks = _sinks(workspace)
    facts = ask_facts(workspace, sinks)
    said = ask_targets(workspace, sinks, {})
    for name in sinks:
        answer = facts[name]
        error = answer if isinstance(answer, str) else said[name].error
        advice = "check address, network and credentials of this sink's options"
        yield Check(f"target {name}", not error, error or "reached", advice)
        waiting = () if isinstance(answer, str) else answer.get("prepared", ())
        if isinstance(waiting, list):
            yield from (Check(f"prepared transaction at {name}", True, str(one)) for one in waiting)
