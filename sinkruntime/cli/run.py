"""`sinkjob run`: one run of a job in this process, shown as it goes."""

from __future__ import annotations

import click

from sinkruntime.cli.display import make_display
from sinkruntime.cli.jobs import job_argument, namespace_option, opened
from sinkruntime.environment import SystemClock


@click.command(short_help="Run a job on this machine.")
@job_argument
@namespace_option
@click.option(
    "--available-now",
    is_flag=True,
    help="End when everything that the source holds now is committed, instead of waiting for more.",
)
@click.option(
    "--master", default="local[*]", show_default=True, help="Spark's master: local[N] uses N cores of this machine."
)
@click.pass_context
def run(ctx: click.Context, job: str, namespace: str | None, available_now: bool, master: str) -> None:
    """Run a job on this machine until its source is done, or until Ctrl-C.

    Works in the manifest's folder: every relative path in a manifest begins there. What the job remembers (its
    ledger, Spark's checkpoint) lies in .sinkjob/NAMESPACE/NAME beside the manifest; keep it, and the next run goes on
    where this one stops. Ctrl-C (or SIGTERM) stops at the next checkpoint; a second one, or kill -9, at once: nothing
    is lost then and nothing arrives twice.

    Ends with 0 when done, 1 when it failed, 2 when the manifest is invalid, 3 when a newer run has taken over or a
    commit is held or in doubt.
    """
    with opened(job, namespace, to_run=True) as workspace:
        from sinkruntime.local.job import RunOptions, run_local  # imports Spark, which the other commands do without

        with make_display(SystemClock()) as display:
            code = run_local(workspace.job, RunOptions(available_now, master), display)
    ctx.exit(int(code))
