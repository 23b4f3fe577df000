"""A job's sinks: made from a bound manifest, under whose word each is committed, and how.

Called wherever a job runs or is looked at: local run, driver pod, committer pod, operator, command line. It connects
to nothing.
"""

from __future__ import annotations

from sinkruntime.api import RunOn, Sink, SinkIdentity
from sinkruntime.cli.secrecy import hide
from sinkruntime.coordinator.settings import CommitSettings
from sinkruntime.protocol.ledger import Authority
from sinkruntime.spec.bind import BoundJob
from sinkruntime.spec.delivery import Commit
from sinkruntime.spec.models import SinkJobSpec


def make_sinks(job: BoundJob, ledger_id: str) -> dict[str, Sink]:
    """A job's sinks by name, keyed by the ledger; nothing is connected."""
    meta = job.manifest.job.metadata
    name = f"{meta.namespace}/{meta.name}"
    return {
        bound.spec.name: bound.sink_class(bound.options, SinkIdentity(ledger_id, bound.spec.name, name))
        for bound in job.sinks
    }


def authorities(job: BoundJob) -> dict[str, Authority]:
    """Under whose word each sink is committed: the manifest's `commit.runOn`, or the sink's default."""
    found = {}
    for bound in job.sinks:
        asked = bound.spec.commit.run_on
        run_on = RunOn(asked) if asked else bound.sink_class.default_run_on(bound.options)
        found[bound.spec.name] = Authority.EPOCH if run_on is RunOn.DRIVER else Authority.TOKEN
    return found


def commit_settings(commit: Commit) -> CommitSettings:
    """The manifest's `spec.commit` as a coordinator takes it; the ledger gets no secret that this process knows."""
    return CommitSettings(
        timeout_seconds=commit.timeout.seconds,
        timeout_max_seconds=commit.max_timeout.seconds,
        backoff_first_seconds=commit.retry.initial_backoff.seconds,
        backoff_max_seconds=commit.retry.max_backoff.seconds,
        attempts_max=commit.retry.max_attempts,
        hide=hide,
    )


def warn_sinks(spec: SinkJobSpec) -> frozenset[str]:
    """The sinks with `onFailure: Warn`."""
    return frozenset(sink.name for sink in spec.sinks if sink.on_failure == "Warn")
