"""`sinkjob validate` and `sinkjob plan`: what can be said of a manifest before it runs."""

from __future__ import annotations

import click

from sinkruntime.cli.jobs import job_argument, manifest_path, namespace_option, opened
from sinkruntime.cli.output import output_option, show
from sinkruntime.cli.plan import plan_of, plan_text
from sinkruntime.errors import ExitCode, ManifestError, Problem
from sinkruntime.local.inspection import read_ledger


@click.command(short_help="Find everything that is wrong with a manifest.")
@job_argument
@output_option
@click.pass_context
def validate(ctx: click.Context, job: str, output: str) -> None:
    """Find everything that is wrong with a manifest, without running it.

    Checks fields, values, what contradicts what, the sinks' options, the guarantees asked for, and that files, secrets
    and code that the manifest refers to are there. One line for each problem:

    \b
      job.yaml:12: spec.sinks[0].options.tabel: unknown option; did you mean `table`?

    Connects to nothing and starts no Spark: the syntax of SQL, and what only the source or a target can tell, is
    checked when the job starts. Ends with 0 when nothing is wrong, with 2 otherwise.
    """
    manifest_path(job, None)
    problems: tuple[Problem, ...] = ()
    text = ""
    try:
        with opened(job, to_run=True) as workspace:
            spec = workspace.job.manifest.job.spec
            sinks = ", ".join(f"{sink.name} ({sink.type})" for sink in spec.sinks)
            text = f"{job}: valid; job {workspace.name}, sinks {sinks}"
            if any(step.sql for step in spec.transform) or any(sink.where for sink in spec.sinks):
                text += "\nits SQL is only checked when it runs: that takes Spark and the source's columns"
    except ManifestError as error:
        problems = error.problems
    if output != "text" or not problems:
        listed = [{"line": p.line, "path": p.path, "message": p.message, "expected": p.expected} for p in problems]
        show(output, {"valid": not problems, "problems": listed}, text)
    else:
        click.echo("\n".join(problem.text(job) for problem in problems), err=True)
    ctx.exit(int(ExitCode.INVALID_MANIFEST if problems else ExitCode.DONE))


@click.command(short_help="Say what a run would do, and which guarantee it gives.")
@job_argument
@namespace_option
@output_option
@click.option("--offline", is_flag=True, help="Do not connect to the targets; they may give less than is said then.")
def plan(job: str, namespace: str | None, output: str, offline: bool) -> None:
    """Say what a run would do, and which guarantee each sink gives and why.

    Shows where rows come from and go to, how each sink commits (a whole checkpoint at once, or writer by writer),
    where its proof of a commit is kept, how long a job may be down before staged rows expire, what has changed since
    the last run, and what `recovery.accept` would allow. Changes nothing.
    """
    with opened(job, namespace) as workspace:
        value = plan_of(workspace, read_ledger(workspace), offline)
        show(output, value, plan_text(value))
