"""The operator's settings, from its command line or from environment variables of the same names.

The entry point calls `command`. Each option can be given as `SINKJOB_…` in the environment, so that the chart writes
them into a Deployment; what is wrong is told with the option's name, before anything starts.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from sinkruntime.spec.quantities import Duration, Memory

#: Where Kubernetes tells a pod its namespace.
OWN_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

SHARDS_MAX = 256
WORKERS_MAX = 256
CONCURRENCY_MAX = 1000


@dataclass(frozen=True, slots=True)
class Settings:
    """What an operator process is told. Times are in seconds, memory in bytes; 0 as a limit means none."""

    namespaces: tuple[str, ...]  # none: the whole cluster
    operator_namespace: str
    identity: str
    instance: str
    shards: int
    workers: int
    worker_memory_bytes: int
    concurrency: int
    driver_image: str
    driver_service_account: str
    egress_allow: tuple[str, ...]
    namespace_limit_jobs: int
    namespace_limit_commits: int
    lease_seconds: float
    renew_seconds: float
    resync_seconds: float
    shutdown_seconds: float
    health_port: int
    metrics_port: int
    metrics_per_job: bool
    log_format: str
    log_level: str


class _Quantity(click.ParamType[float]):
    """An amount as the manifest writes it, turned into a number."""

    def __init__(self, name: str, parse: Callable[[str], float]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See `click.ParamType`."""
        try:
            return value if isinstance(value, float | int) else self._parse(str(value))
        except (ValueError, OverflowError) as error:
            self.fail(f"{value!r}: {error}", param, ctx)


DURATION = _Quantity("duration", lambda text: Duration.parse(text).seconds)
MEMORY = _Quantity("memory", lambda text: Memory.parse(text).bytes)
PORT = click.IntRange(0, 65535)


def own_namespace() -> str:
    """The namespace of this process's pod; `sinkjob` where it is not in one."""
    try:
        return OWN_NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    except OSError:
        return "sinkjob"


Option = Callable[[Callable[..., Any]], Callable[..., Any]]


def _option(name: str, help_text: str, **kwargs: Any) -> Option:
    return click.option(name, help=help_text, show_default=kwargs.pop("show_default", True), show_envvar=True, **kwargs)


OPTIONS: Sequence[Option] = (
    _option(
        "--namespace", "Namespace whose SinkJobs are run; may be given again. Without it: all of the cluster.",
        multiple=True, show_default=False,
    ),
    _option(
        "--operator-namespace", "Namespace of the operator's own Leases. The default is the pod's own.",
        default=own_namespace, show_default=False,
    ),
    _option(
        "--identity", "Name of this replica, for people. The default is the host's, which is the pod's.",
        default=socket.gethostname, show_default=False,
    ),
    _option(
        "--instance", "The pod's uid: a process with the same one is this one's successor, and need not wait until its "
        "Lease runs out. The default is like no other's.",
        default=lambda: str(uuid.uuid4()), show_default=False,
    ),
    _option(
        "--shards", "In how many parts the jobs are shared among replicas. The same for all replicas.",
        type=click.IntRange(1, SHARDS_MAX), default=16,
    ),
    _option(
        "--workers", "How many worker processes may commit to targets at the same time.",
        type=click.IntRange(1, WORKERS_MAX), default=16,
    ),
    _option("--worker-memory", "Memory that one worker process may use.", type=MEMORY, default="512m"),
    _option(
        "--concurrency", "How many jobs are looked at at the same time.",
        type=click.IntRange(1, CONCURRENCY_MAX), default=16,
    ),
    _option(
        "--driver-image", "Image of drivers and executors of jobs that name none.", default="", show_default=False,
    ),
    _option(
        "--driver-service-account", "Service account of the drivers of jobs that name none, in each namespace of jobs. "
        "Without it each job gets one of its own.",
        default="", show_default=False,
    ),
    _option(
        "--egress-allow", "Host that commits may reach, as `host`, `*.domain` or a network `10.0.0.0/8`, with `:port` "
        "or without; may be given again. Without it: every host.",
        multiple=True, show_default=False,
    ),
    _option(
        "--namespace-limit-jobs", "How many jobs of one namespace may run at the same time; 0: no limit.",
        type=click.IntRange(0), default=0,
    ),
    _option(
        "--namespace-limit-commits", "How many worker processes of a replica may commit for one namespace at the same "
        "time; 0: all but one.",
        type=click.IntRange(0), default=0,
    ),
    _option("--lease", "After this time without a sign of life a replica's jobs are taken over.",
            type=DURATION, default="15s"),
    _option("--renew", "How often a replica gives a sign of life; less than a third of --lease.",
            type=DURATION, default="2s"),
    _option("--resync", "How often all SinkJobs are listed, should a watch have missed one.",
            type=DURATION, default="5m"),
    _option("--shutdown", "How long an orderly end may take; less than the pod's grace period.",
            type=DURATION, default="25s"),
    _option("--health-port", "Port of /healthz and /readyz; 0: none.", type=PORT, default=8080),
    _option("--metrics-port", "Port of /metrics, for Prometheus; 0: none.", type=PORT, default=9090),
    _option("--metrics-per-job/--no-metrics-per-job", "Whether metrics are told job by job, or as sums over all jobs.",
            default=True),
    _option("--log-format", "One line of text, or one JSON object, for each log message.",
            type=click.Choice(["json", "text"]), default="json"),
    _option("--log-level", "Log messages of this level and above go to standard error.",
            type=click.Choice(["debug", "info", "warning", "error"]), default="info"),
)  # fmt: skip


def command(start: Callable[[Settings], int]) -> click.Command:
    """The command line; it calls `start` with the settings, and ends with the exit code that it returns."""

    def sinkjob_operator(**given: Any) -> None:
        settings = _settings(given)
        click.get_current_context().exit(start(settings))

    function: Callable[..., Any] = sinkjob_operator
    for option in reversed(OPTIONS):
        function = option(function)
    function = click.version_option(version("sinkjob"), "-V", "--version", prog_name="sinkjob-operator")(function)
    context = {"auto_envvar_prefix": "SINKJOB", "help_option_names": ["-h", "--help"], "max_content_width": 100}
    return click.command("sinkjob-operator", help=HELP, context_settings=context)(function)


HELP = """Run SinkJobs on this Kubernetes cluster.

A SinkJob is a manifest that names a source, what is done to its rows, and the targets (sinks) they go to. This process
starts a Spark driver in a pod for each of them, and commits what the driver has decided, so that every row arrives
exactly once. Any number of these processes (replicas) share the jobs; each may be killed at any instant.

It is usually started by the Helm chart, inside the cluster. Outside it uses the current context of KUBECONFIG.
Every option can be given in the environment instead, by the name shown with it. Exit codes: 0 ended in order, 1
failed, 2 wrong command line.
"""

#: Names of options that differ from those of the settings: a setting has its unit in its name.
_RENAMED = {
    "namespace": "namespaces",
    "worker_memory": "worker_memory_bytes",
    "lease": "lease_seconds",
    "renew": "renew_seconds",
    "resync": "resync_seconds",
    "shutdown": "shutdown_seconds",
}


def _settings(given: dict[str, Any]) -> Settings:
    values = {_RENAMED.get(name, name): value for name, value in given.items()}
    assert values.keys() == {field.name for field in fields(Settings)}, "each option is a setting"
    settings = Settings(**values)
    if not settings.driver_image:
        raise click.UsageError("--driver-image is missing: jobs that name no image could not be started")
    if 3 * settings.renew_seconds > settings.lease_seconds:
        message = f"{settings.renew_seconds:g} s is more than a third of --lease ({settings.lease_seconds:g} s)"
        raise click.BadParameter(message, param_hint="--renew")
    for name in ("renew", "resync", "shutdown"):
        if values[f"{name}_seconds"] <= 0:
            raise click.BadParameter("must be more than 0", param_hint=f"--{name}")
    if len(set(settings.namespaces)) != len(settings.namespaces):
        raise click.BadParameter("a namespace is given twice", param_hint="--namespace")
    return settings
