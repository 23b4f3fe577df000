"""What is the same for all commands: help, misspellings, errors and their exit codes, logging."""

import json
import logging
import os
from pathlib import Path

import click
import pytest

from sinkruntime.cli import jobs, logs
from sinkruntime.cli.main import cli
from sinkruntime.errors import ConfigurationError, Fenced, InDoubt, ManifestError, Problem, SinkjobError
from tests.unit.cli.fabricate import Fabricated, invoke

COMMANDS = ["run", "validate", "plan", "status", "commits", "explain", "sinks", "doctor", "ledger", "driver", "commit"]


def test_help_lists_the_commands_of_the_manifests_page() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    assert list(cli.commands) == COMMANDS
    listed = result.stdout.partition("Commands:")[2]
    assert [line.split()[0] for line in listed.splitlines() if line.strip()] == COMMANDS
    assert "..." not in listed, "a summary was cut off"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_is_explained(command: str) -> None:
    found = cli.commands[command]
    assert found.help
    for parameter in found.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
    assert invoke(command, "-h").exit_code == 0


def test_a_misspelled_command_is_answered_with_the_right_one() -> None:
    result = invoke("vaildate", "job.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "No such command 'vaildate'. Did you mean 'validate'?" in result.stderr


def test_a_misspelled_option_is_answered_with_the_right_one() -> None:
    result = invoke("run", "job.yaml", "--avaliable-now")
    assert result.exit_code == 2
    assert "No such option '--avaliable-now'. Did you mean '--available-now'?" in result.stderr


@pytest.mark.parametrize("arguments", [("flights",), ("flights", "-n", "data"), ("job.yaml", "-n", "data")])
def test_the_name_of_a_job_on_a_cluster_is_refused_with_what_to_give_instead(arguments: tuple[str, ...]) -> None:
    result = invoke("status", *arguments)
    name = "data/" + arguments[0] if "-n" in arguments else arguments[0]
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"NoCluster: `{name}` is the name of a job on a cluster, and this command looks at no cluster yet\n"
        "give a manifest's file, such as job.yaml; of a job on a cluster `kubectl describe sinkjob` tells\n"
    )


@pytest.mark.parametrize("name", ["missing.yaml", "folder/missing.yml", "folder/missing"])
def test_a_missing_manifest_is_an_invalid_one(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("status", name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"{name}: cannot be read: ")


def test_a_folder_is_no_manifest(job: Fabricated) -> None:
    result = invoke("status", str(job.folder))
    assert (result.exit_code, result.stderr) == (
        2,
        f"{job.folder}: cannot be read: it is a folder; give the manifest in it, such as job.yaml\n",
    )


def test_a_broken_manifest_is_said_with_the_file_as_it_was_given(
    job: Fabricated, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.write((job.folder / "job.yaml").read_text().replace("source:", "sauce:"))
    monkeypatch.chdir(job.folder.parent)
    given = f"{job.folder.name}/job.yaml"
    result = invoke("run", given)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{given}:5: spec.sauce: " in result.stderr
    assert "did you mean `source`?" in result.stderr


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (SinkjobError("Broken", "it broke", "mend it"), 1, "Broken: it broke\nmend it\n"),
        (ConfigurationError("NoJar", "it is gone", path="spec.deps"), 1, "spec.deps: NoJar: it is gone\n"),
        (ManifestError([Problem("spec.sinks", 7, "is wrong", "make it right")], "a.yaml"), 2,
         "a.yaml:7: spec.sinks: is wrong; make it right\n"),
        (Fenced("a newer driver runs"), 3, "Fenced: a newer driver runs\n"),
        (InDoubt("nobody knows"), 3, "InDoubt: nobody knows\n"),
    ],
)  # fmt: skip
def test_each_error_of_ours_ends_in_its_text_and_exit_code(
    error: SinkjobError, code: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinkruntime.cli.look.opened", _raising(error))
    result = invoke("status", "job.yaml")
    assert (result.exit_code, result.stderr, result.stdout) == (code, text, "")


def test_an_unexpected_error_is_one_line_and_says_how_to_see_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinkruntime.cli.look.opened", _raising(ZeroDivisionError("by zero\nand more")))
    result = invoke("status", "job.yaml")
    assert (result.exit_code, result.stderr) == (
        1,
        "unexpected error, most likely a bug in sinkjob: ZeroDivisionError: by zero\n"
        "`sinkjob --debug …` with the same command shows where it comes from\n",
    )
    assert "raise error" in invoke("--debug", "status", "job.yaml").stderr


def _raising(error: Exception) -> object:
    def opened(job: str, namespace: str | None) -> object:
        raise error

    return opened


def test_an_error_at_a_field_gets_the_file_and_line(job: Fabricated) -> None:
    with pytest.raises(ConfigurationError) as caught, jobs.opened(job.path):
        raise ConfigurationError("Wrong", "it is", path="spec.sinks[1].options.target")
    assert str(caught.value) == f"{job.path}:14: spec.sinks[1].options.target: Wrong: it is"


def test_commands_work_in_the_manifests_folder_and_come_back(job: Fabricated) -> None:
    before = os.getcwd()
    with jobs.opened(job.path) as workspace:
        assert Path.cwd() == job.folder.resolve()
        assert workspace.job.manifest.base.is_absolute()
    assert os.getcwd() == before


def test_log_records_as_json_have_the_protocols_facts(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        logs.configure("info", "json")
        logs.configure("info", "json")
        facts = {"checkpoint": 7, "sink": "lake"}
        logging.getLogger("sinkruntime.x").info("checkpoint %d", 7, extra={"sinkjob": facts})
        logging.getLogger("sinkruntime.x").debug("not this")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    (line,) = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert told.pop("time").endswith("Z")
    assert told == {
        "level": "info", "logger": "sinkruntime.x", "message": "checkpoint 7", "checkpoint": 7, "sink": "lake",
    }  # fmt: skip
