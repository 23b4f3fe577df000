"""The operator's command line: what it takes, what it refuses, and what it says of itself."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result

from sinkoperator.settings import OPTIONS, Settings, command

IMAGE = ("--driver-image", "driver:1")


def run(*arguments: str, environ: dict[str, str] | None = None, code: int = 0) -> tuple[Result, list[Settings]]:
    """Call the command line; what it would have started with."""
    started: list[Settings] = []

    def start(settings: Settings) -> int:
        started.append(settings)
        return code

    return CliRunner().invoke(command(start), arguments, env=environ), started


def test_defaults_are_enough_with_an_image() -> None:
    result, (settings,) = run(*IMAGE)

    assert result.exit_code == 0
    assert settings.namespaces == ()
    assert settings.lease_seconds == 15.0
    assert settings.worker_memory_bytes == 512 * 1024**2


def test_each_option_has_a_variable_and_a_help_text() -> None:
    help_text = run("--help")[0].output

    assert " ".join(help_text.split()).count("env var:") == len(OPTIONS)
    assert "SINKJOB_NAMESPACE" in help_text


def test_the_environment_speaks_where_the_command_line_is_silent() -> None:
    environ = {"SINKJOB_NAMESPACE": "a b", "SINKJOB_DRIVER_IMAGE": "x", "SINKJOB_LEASE": "9s", "SINKJOB_SHARDS": "4"}

    _, (settings,) = run("--shards", "8", environ=environ)

    assert (settings.namespaces, settings.driver_image) == (("a", "b"), "x")
    assert (settings.lease_seconds, settings.shards) == (9.0, 8)


def test_the_exit_code_is_that_of_the_run() -> None:
    assert run(*IMAGE, code=1)[0].exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--driver-image is missing"),
        ((*IMAGE, "--lease", "7"), "'--lease': '7': expected a duration such as 200ms"),
        ((*IMAGE, "--worker-memory", "1GB"), "'--worker-memory': '1GB': expected an amount of memory"),
        ((*IMAGE, "--renew", "6s"), "--renew: 6 s is more than a third of --lease (15 s)"),
        ((*IMAGE, "--resync", "0s"), "--resync: must be more than 0"),
        ((*IMAGE, "--namespace", "a", "--namespace", "a"), "--namespace: a namespace is given twice"),
        ((*IMAGE, "--shards", "0"), "'--shards': 0 is not in the range"),
        ((*IMAGE, "--log-format", "xml"), "'--log-format': 'xml' is not one of"),
    ],
)
def test_bad_settings_are_refused_by_name(arguments: tuple[str, ...], said: str) -> None:
    result, started = run(*arguments)

    assert result.exit_code == 2
    assert said in result.output
    assert started == []
