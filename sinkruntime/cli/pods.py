"""`sinkjob driver` and `sinkjob commit`: what the operator starts in a job's pods. People use `sinkjob run`."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from sinkruntime.cli import logs
from sinkruntime.errors import ExitCode

_job_option = click.option(
    "--job",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The SinkJob as JSON, in place of job/job.json below the folder of mounts.",
)

_ENVIRONMENT = """
    \b
    The environment says which pod this is:
      SINKJOB_NAMESPACE, SINKJOB_JOB, SINKJOB_EPOCH       of which job and driver run
      SINKJOB_POD_NAME, SINKJOB_POD_UID, SINKJOB_POD_IP   from the downward API
      SINKJOB_IMAGE                                       the executors get it too
      SINKJOB_MOUNTS            folder of job, secrets and configmaps (/etc/sinkjob)
      SINKJOB_TERMINATION_LOG   where the reason of the end is left (/dev/termination-log)
      SINKJOB_GRACE_SECONDS     the pod's terminationGracePeriodSeconds (30)
      SINKJOB_EXECUTOR_SECONDS  without any executor for so long it ends (300)
      SINKJOB_MASTER            for tests: Spark's master in place of this cluster
"""


@click.command(short_help="In a driver pod: run a job's epoch.")
@_job_option
@click.option("--commit-only", is_flag=True, help="Only commit what this epoch's sinks still owe, then end.")
def driver(job: Path | None, commit_only: bool) -> None:
    from sinkruntime.cluster.surroundings import Surroundings

    told = Surroundings.read()
    logs.configure("info", "json", {"job": told.name, "epoch": told.epoch})
    from sinkruntime.cluster.process import run_process

    if commit_only:
        from sinkruntime.cluster.committer import commit_only as body
    else:
        from sinkruntime.cluster.driver import drive as body  # imports Spark
    _leave(run_process(told, job, body))


@click.command(short_help="In a committer pod: commit a job's checkpoints.")
@_job_option
def commit(job: Path | None) -> None:
    from sinkruntime.cluster.committer import commit_job
    from sinkruntime.cluster.process import run_process
    from sinkruntime.cluster.surroundings import Surroundings

    told = Surroundings.read()
    logs.configure("info", "json", {"job": told.name})
    _leave(run_process(told, job, commit_job))


driver.help = f"""Run one epoch of a job in its driver pod: Spark in client mode, with executors in pods of their own.

    The operator starts it; on a machine of your own use `sinkjob run`. SIGTERM stops it at a checkpoint boundary, a
    second one at once: nothing is lost then and nothing arrives twice.

    Ends with 0 when the source is done or it was asked to stop, 1 when it failed, 2 when the manifest is invalid, 3
    when a newer epoch has taken over or a commit is held or in doubt. The termination message says why, as JSON.
{_ENVIRONMENT}"""
commit.help = f"""Commit a job's checkpoints in a pod of the job's own image, for sinks with `runOn: Job`.

    The operator starts it, and ends it with SIGTERM. Exit codes and termination message are those of `sinkjob driver`.
{_ENVIRONMENT}"""


def _leave(code: ExitCode) -> NoReturn:
    """End at once: what a target's client left hanging in a thread must not keep the pod."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code))
