"""sinks and doctor: what there is, what is missing, and what to do about it."""

import json
from pathlib import Path

import pytest

from sinkruntime.cli import doctor
from sinkruntime.sinks.memory.session import INTERCEPTS, Fault, NoFaults
from sinkruntime.spec.sink_options import sink_types
from tests.unit.cli.fabricate import MANIFEST, Fabricated, invoke


def test_every_sink_is_listed_with_guarantee_and_summary() -> None:
    entries = json.loads(invoke("sinks", "-o", "json").stdout)
    assert {entry["type"] for entry in entries} == set(sink_types()) - {"memory"}
    guarantees = {entry["type"]: entry["guarantee"] for entry in entries}
    assert (guarantees["file"], guarantees["console"]) == ("ExactlyOnce", "AtLeastOnce")
    assert all(entry["summary"] for entry in entries)
    text = invoke("sinks").stdout.splitlines()
    assert text[0].split() == ["TYPE", "GUARANTEE", "WHAT", "IT", "WRITES", "TO"]
    assert len(text) == len(entries) + 1


def test_the_options_of_a_sink_have_type_default_and_meaning() -> None:
    told = json.loads(invoke("sinks", "memory", "-o", "json").stdout)
    options = {option["name"]: option for option in told["options"]}
    assert options["target"] == {
        "name": "target", "type": "text", "required": True, "default": None,
        "description": "Name of the target in this process.",
    }  # fmt: skip
    assert (options["tier"]["type"], options["tier"]["default"]) == ("committer, aggregated, both", "both")
    assert (options["lostAnswers"]["type"], options["life"]["type"]) == ("integer", "duration")
    assert "target       text                         required  Name of the target" in invoke("sinks", "memory").stdout


def test_options_within_options_and_lists_are_shown_as_a_manifest_writes_them() -> None:
    told = json.loads(invoke("sinks", "file", "-o", "json").stdout)
    options = {option["name"]: (option["type"], option["default"]) for option in told["options"]}
    assert options["partitionBy"] == ("list of text", [])
    assert options["targetFileSize"] == ("size", "128MiB")
    assert options["storage.secretKey"] == ("secret text", None)


@pytest.mark.parametrize("name", [*sink_types()])
def test_every_option_of_every_sink_is_described(name: str) -> None:
    told = json.loads(invoke("sinks", name, "-o", "json").stdout)
    assert [option["name"] for option in told["options"] if not option["description"]] == []


def test_a_misspelled_type_is_answered_with_the_right_one() -> None:
    result = invoke("sinks", "fiel")
    assert (result.exit_code, result.stderr) == (
        1,
        "UnknownSink: there is no sink `fiel`\ndid you mean `file`?\n",
    )


def test_doctor_looks_at_this_machine() -> None:
    result = invoke("doctor", "-o", "json")
    checks = {entry["check"]: entry for entry in json.loads(result.stdout)}
    assert list(checks) == ["Python", "PySpark", "Java"]
    assert checks["Python"]["ok"]
    assert checks["PySpark"]["ok"]
    assert result.exit_code == (0 if checks["Java"]["ok"] else 1)


def test_doctor_says_what_to_install_where_java_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = invoke("doctor")
    assert result.exit_code == 1
    assert "FAIL  Java: Spark needs Java, and there is no java on PATH\n      install Java 17 or 21 (" in result.stdout


def test_doctor_with_a_job_looks_at_paths_space_ledger_and_targets(job: Fabricated) -> None:
    job.write(MANIFEST.replace("{format: rate}", "{format: csv, path: in, schema: a INT}"))
    (job.folder / "in").mkdir()
    job.begin()
    job.settle(1)
    checks = {entry["check"]: entry for entry in json.loads(invoke("doctor", job.path, "-o", "json").stdout)}
    assert [name for name, entry in checks.items() if not entry["ok"] and name != "Java"] == []
    assert checks["source"]["found"] == "in can be read"
    assert checks["ledger"]["found"] == "1 checkpoints decided, 0 pending"
    assert checks["target lake"]["found"] == "reached"


class _Down(NoFaults):
    def before(self, operation: str, subject: str) -> Fault:
        return Fault.UNAVAILABLE


def test_doctor_fails_where_a_target_is_down_the_disk_full_or_the_ledger_damaged(
    job: Fabricated, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.begin()
    (job.workspace.root / "ledger" / "ledger.json").write_text("torn")
    INTERCEPTS[job.folder.name] = _Down()
    monkeypatch.setattr(doctor, "FREE_BYTES_MIN", 1 << 62)
    result = invoke("doctor", job.path)
    assert result.exit_code == 1
    failed = [line.split(": ")[0] for line in result.stdout.splitlines() if line.startswith("FAIL  ")]
    assert [name for name in failed if "Java" not in name] == [
        "FAIL  disk", "FAIL  ledger", "FAIL  target lake", "FAIL  target screen",
    ]  # fmt: skip


def test_doctor_shows_the_problems_of_an_invalid_manifest(job: Fabricated) -> None:
    job.write(f"{MANIFEST}  triger: {{}}\n")
    result = invoke("doctor", job.path)
    assert result.exit_code == 1
    assert f"FAIL  manifest: {job.path}:15: spec.triger: " in result.stdout
