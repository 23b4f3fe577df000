"""A manifest is joined with its sinks and secrets before anything starts; all that is wrong comes at once."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sinkruntime.errors import ManifestError
from sinkruntime.spec.bind import load_job

HERE = Path(__file__).parent
MANIFEST = """\
apiVersion: sinkjob.io/v1alpha1
kind: SinkJob
metadata: {name: flights}
spec:
  source:
    format: kafka
    options: {subscribe: flights}
    optionsFrom: [{envRef: {prefix: KAFKA_}}]
  checkpoint: {optionsFrom: [{fileRef: {path: s3.env}}]}
  sinks:
  - name: toy
    type: toy_sink:ToySink
    guarantee: AtLeastOnce
    options: {table: flights}
    optionsFrom: [{secretRef: {name: toy}}]
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A manifest with all that it refers to."""
    monkeypatch.syspath_prepend(HERE)
    file = tmp_path / "job.yaml"
    file.write_text(MANIFEST, encoding="utf-8")
    (tmp_path / "s3.env").write_text("fs.s3a.secret.key=hunter2\n", encoding="utf-8")
    secret = tmp_path / ".sinkjob/secrets/toy"
    secret.mkdir(parents=True)
    (secret / "password").write_text("hunter2", encoding="utf-8")
    yield file
    sys.modules.pop("toy_sink", None)


ENVIRON = {"KAFKA_kafka.sasl.jaas.config": "hunter2"}


def refusal(job: Path, environ: dict[str, str] = ENVIRON) -> list[str]:
    with pytest.raises(ManifestError) as refused:
        load_job(job, environ)
    return str(refused.value).replace(f"{job}:", "").splitlines()


def change(job: Path, old: str, new: str) -> None:
    text = job.read_text(encoding="utf-8")
    assert text.count(old) == 1
    job.write_text(text.replace(old, new), encoding="utf-8")


def test_a_job_is_bound_to_its_sinks_options_and_secrets(job: Path) -> None:
    bound = load_job(job, ENVIRON)

    (sink,) = bound.sinks
    assert sink.sink_class.__name__ == "ToySink"
    assert sink.options.model_dump()["password"].get_secret_value() == "hunter2"
    assert dict(bound.source_secrets) == {"kafka.sasl.jaas.config": "hunter2"}
    assert dict(bound.checkpoint_secrets) == {"fs.s3a.secret.key": "hunter2"}
    assert "hunter2" not in f"{bound!r} {sink!r} {bound.source_secrets!r}"


def test_what_is_wrong_within_and_outside_the_manifest_comes_at_once(job: Path) -> None:
    change(job, "format: kafka", "format: kafka\n    path: p")
    change(job, "options: {table: flights}", "options: {tabel: flights}")
    change(job, "secretRef: {name: toy}", "secretRef: {name: tay}")
    change(job, "s3.env", "s4.env")
    here = job.parent
    assert refusal(job, {}) == [
        "7: spec.source.path: the source `kafka` takes no path; leave it out",
        "9: spec.source.optionsFrom[0]: no environment variable begins with KAFKA_",
        f"10: spec.checkpoint.optionsFrom[0]: {here}/s4.env cannot be read: No such file or directory",
        "16: spec.sinks[0].optionsFrom[0]: there is no Secret `tay`; without a cluster, put one file for each key into "
        f"{here}/.sinkjob/secrets/tay",
    ]


def test_files_that_only_a_run_needs_are_looked_for_only_then(job: Path) -> None:
    change(job, "spec:", "spec:\n  deps: {jars: [none.jar]}\n  onFailure: Warn")
    with pytest.raises(ManifestError) as refused:
        load_job(job, ENVIRON, to_run=True)
    assert [problem.path for problem in refused.value.problems] == ["spec.deps.jars[0]", "spec.onFailure"]
    change(job, "\n  onFailure: Warn", "")
    assert load_job(job, ENVIRON).manifest.job.spec.deps.jars == ("none.jar",)


def test_wrong_options_have_the_line_of_the_option(job: Path) -> None:
    change(job, "options: {table: flights}", "options:\n      maxRows: 0\n      tabel: flights")
    assert refusal(job) == [
        "14: spec.sinks[0].options.table: is required",
        "15: spec.sinks[0].options.maxRows: must be at least 1",
        "16: spec.sinks[0].options.tabel: unknown option; did you mean `table`?",
    ]


def test_a_guarantee_that_the_sink_cannot_give_is_refused_with_its_reason(job: Path) -> None:
    change(job, "guarantee: AtLeastOnce", "guarantee: ExactlyOnce")
    assert refusal(job) == [
        "13: spec.sinks[0].guarantee: `ExactlyOnce` is more than this sink can give with these options: "
        "it keeps no evidence; at most `AtLeastOnce`"
    ]


def test_an_option_of_the_source_from_two_places_is_refused(job: Path) -> None:
    change(job, "subscribe: flights", "subscribe: flights, Kafka.X: a")
    assert refusal(job, {**ENVIRON, "KAFKA_kafka.x": "b"}) == [
        '7: spec.source.options["Kafka.X"]: is in `optionsFrom` too; keep one of them'
    ]


def test_a_manifest_of_which_too_little_is_right_names_its_own_problems(job: Path) -> None:
    change(job, "  - name: toy", "  - nam: toy")
    assert refusal(job) == [
        "11: spec.sinks[0].name: is required",
        "11: spec.sinks[0].nam: unknown field; did you mean `name`?",
    ]


def test_dead_letters_are_refused_where_the_sink_never_turns_down_a_row(job: Path) -> None:
    rejects = "  - {name: rejects, type: 'toy_sink:ToySink', options: {table: r}}\n"
    change(job, "    guarantee: AtLeastOnce\n", "    guarantee: AtLeastOnce\n    deadLetter: {sink: rejects}\n")
    job.write_text(job.read_text(encoding="utf-8") + rejects, encoding="utf-8")

    assert any(
        "spec.sinks[0].deadLetter: the sink `toy_sink:ToySink` never turns down single rows" in line
        for line in refusal(job)
    )


def test_staged_rows_that_would_never_live_long_enough_for_a_decision_are_refused(job: Path) -> None:
    kafka = "  - {name: events, type: kafka, options: {bootstrapServers: 'b:9092', topic: t, transactionTimeout: 2m}}\n"
    job.write_text(job.read_text(encoding="utf-8") + kafka, encoding="utf-8")
    (said,) = refusal(job)
    assert "spec.commit.timeout: 1m is too long for sink `events`, whose staged rows live for 120 s" in said
    assert "less than 60s" in said
    change(job, "transactionTimeout: 2m", "transactionTimeout: 121s")
    assert [sink.spec.name for sink in load_job(job, ENVIRON).sinks] == ["toy", "events"]
