"""The entry point of `sinkjob`: the group of commands, and what every error of theirs ends in.

Started as the console script, or as `python -m sinkruntime.cli.main`. Errors of ours are said in full on standard
error and end in their exit code; anything else is a bug of ours, said in one line, with its traceback on `--debug`.
"""

from __future__ import annotations

import errno
import sys
import traceback
from importlib.metadata import version
from typing import Any

import click

from sinkruntime.cli import logs
from sinkruntime.cli.check import plan, validate
from sinkruntime.cli.doctor import doctor
from sinkruntime.cli.ledger import ledger
from sinkruntime.cli.look import commits, explain, status
from sinkruntime.cli.pods import commit, driver
from sinkruntime.cli.run import run
from sinkruntime.cli.secrecy import hide
from sinkruntime.cli.sinks import sinks
from sinkruntime.errors import ExitCode, SinkjobError


class Commands(click.Group):
    """A group whose commands' errors become a text and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """See `click.Group`."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except SinkjobError as error:
            if ctx.params["debug"]:
                click.echo(hide(traceback.format_exc()), err=True)
            click.echo(hide(str(error)), err=True)
            ctx.exit(int(error.exit_code))
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # whoever read our output has gone
            _say_unexpected(error, ctx.params["debug"])
            ctx.exit(int(ExitCode.FAILED))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which a newcomer needs them."""
        return list(self.commands)


def _say_unexpected(error: Exception, debug: bool) -> None:
    if debug:
        click.echo(hide(traceback.format_exc()), err=True)
    first_line = (str(error).splitlines() or [""])[0]
    said = hide(f"{type(error).__name__}: {first_line}")
    click.echo(f"unexpected error, most likely a bug in sinkjob: {said}", err=True)
    if not debug:
        click.echo("`sinkjob --debug …` with the same command shows where it comes from", err=True)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version("sinkjob"), "-V", "--version", prog_name="sinkjob")
@click.option(
    "--log-level",
    type=click.Choice(logs.LEVELS),
    default="warning",
    show_default=True,
    help="Log messages of this level and above go to standard error.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="One line of text, or one JSON object, for each log message.",
)
@click.option("--debug", is_flag=True, help="Show the Python traceback of an error.")
def cli(log_level: str, log_format: str, debug: bool) -> None:
    """Run exactly-once sink jobs on Spark.

    A job is one YAML file, its manifest: where rows come from, what is done to them, and the targets (sinks) they go
    to. `sinkjob run job.yaml` runs it on this machine. Every row arrives exactly once where the target can prove it,
    also when any process is killed at any instant: the next run goes on where the last one stood.

    \b
    First steps:
      sinkjob doctor             what this machine lacks
      sinkjob sinks              the targets there are
      sinkjob validate job.yaml  everything that is wrong with a manifest
      sinkjob plan job.yaml      what a run would do, and which guarantee it gives
      sinkjob run job.yaml       run it
      sinkjob commits job.yaml   what has arrived, asked from the targets

    JOB is a manifest's file. Exit codes: 0 done, 1 failed, 2 invalid manifest or command line, 3 fenced or in doubt.
    """
    logs.configure("debug" if debug and log_level == "warning" else log_level, log_format)


for command in (run, validate, plan, status, commits, explain, sinks, doctor, ledger, driver, commit):
    cli.add_command(command)


def main() -> None:
    """Run the command line of this process."""
    cli(prog_name="sinkjob")


if __name__ == "__main__":
    sys.exit(main())  # type: ignore[func-returns-value]
