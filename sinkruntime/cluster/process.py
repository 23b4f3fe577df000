"""A pod's process from its start to its exit code: signals, the job, the connection, the last word.

The commands `sinkjob driver` and `sinkjob commit` call `run_process`, and nothing else of this package. It decides
nothing about the job.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from sinkruntime.cluster.connection import Connection, connected
from sinkruntime.cluster.job import load_pod_job
from sinkruntime.cluster.report import Ended, leave
from sinkruntime.cluster.stopping import Stop, stop_signals
from sinkruntime.cluster.surroundings import JOB_FILE, Surroundings
from sinkruntime.environment import Environment
from sinkruntime.errors import ExitCode, SinkjobError

log = logging.getLogger(__name__)

Body = Callable[[Connection, Stop], Ended]


def run_process(told: Surroundings, job: Path | None, body: Body) -> ExitCode:
    """Run `body` for the job; whatever ends it is left as the pod's termination message, and told by the code."""
    environment = Environment.real()
    stop = Stop(environment.clock, told.grace_seconds)

    def out_of_time() -> None:
        """What runs is not waited for any longer: a process may be killed at any instant, and loses nothing."""
        message = f"it did not come to a checkpoint boundary within {told.grace_seconds:.0f} s"
        advice = "raise terminationGracePeriodSeconds in the podTemplate above the time that a batch takes"
        leave(Ended("StopTimedOut", message, advice, code=ExitCode.FAILED), told.termination_log)
        os._exit(int(ExitCode.FAILED))

    with stop_signals(stop, out_of_time):
        ended = _run(told, job, body, stop, environment)
    leave(ended, told.termination_log)
    return ended.code


def _run(told: Surroundings, job: Path | None, body: Body, stop: Stop, environment: Environment) -> Ended:
    try:
        loaded = load_pod_job(job or told.mounts / "job" / JOB_FILE, told)
        with connected(loaded, environment) as connection:
            return body(connection, stop)
    except SinkjobError as error:
        return Ended.by(error)
    except Exception as error:
        log.exception("an error that was not foreseen")
        return Ended.by(error)
