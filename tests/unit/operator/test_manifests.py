"""What can be told of a SinkJob without its secrets."""

from __future__ import annotations

from typing import Any

import pytest

from sinkoperator.gather import references
from sinkoperator.manifests import read

S3 = {"path": "s3a://bucket/out", "format": "parquet"}
LOCAL = {"path": "/data/out", "format": "parquet"}


def job(*sinks: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A SinkJob as the API server has it."""
    body = {"source": {"format": "rate"}, "checkpoint": {"location": "s3a://bucket/c"}, "sinks": list(sinks)}
    return {
        "apiVersion": "sinkjob.io/v1alpha1",
        "kind": "SinkJob",
        "metadata": {"name": "j", "namespace": "n", "uid": "u", "generation": 1, "resourceVersion": "5"},
        "spec": body | spec,
        "status": {"phase": "whatever"},
    }


def sink(name: str = "a", **fields: Any) -> dict[str, Any]:
    """A sink to files."""
    return {"name": name, "type": "file", "options": S3} | fields


@pytest.mark.parametrize(
    ("given", "where"),
    [
        (sink(), "Operator"),
        (sink(options=LOCAL), "Driver"),
        (sink(options=LOCAL, commit={"runOn": "Operator"}), "Operator"),
        (sink(type="console", options={}), "Driver"),
        (sink(type="team.sinks:Ours", options={"any": "thing"}), "Job"),
        (sink(type="team.sinks:Ours", options={}, commit={"runOn": "Driver"}), "Driver"),
    ],
)
def test_each_sink_has_a_place_where_it_commits(given: dict[str, Any], where: str) -> None:
    found = read(job(given))

    assert found.problems == ()
    assert found.run_on == {"a": where}


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (sink(options={**S3, "formta": "csv"}), "spec.sinks[0].options.formta"),
        (sink(type="fiel"), "spec.sinks[0].type"),
        (sink(type="console", options={}, guarantee="ExactlyOnce"), "spec.sinks[0].guarantee"),
        (sink(nmae="x"), "spec.sinks[0].nmae"),
    ],
)
def test_what_is_wrong_has_the_fields_path(given: dict[str, Any], path: str) -> None:
    found = read(job(given))

    assert found.spec is None
    assert path in [problem.path for problem in found.problems]


def test_options_that_may_come_from_a_secret_are_not_missed() -> None:
    keys = [{"secretRef": {"name": "keys"}}]

    assert read(job(sink(options={"format": "parquet"}, optionsFrom=keys))).problems == ()
    assert read(job(sink(options={"format": "parquet"}))).problems != ()


def test_all_that_a_manifest_names_is_asked_for_with_its_place() -> None:
    secret, config = {"secretRef": {"name": "s"}}, {"configMapRef": {"name": "c"}}
    spec = read(
        job(
            sink(optionsFrom=[config, secret]),
            source={"format": "rate", "optionsFrom": [secret]},
            checkpoint={"location": "s3a://bucket/c", "optionsFrom": [secret]},
            deps={"configMaps": ["code"]},
        )
    ).spec
    assert spec is not None

    assert list(references(spec)) == [
        ("Secret", "s", "spec.source.optionsFrom[0].secretRef.name"),
        ("Secret", "s", "spec.checkpoint.optionsFrom[0].secretRef.name"),
        ("ConfigMap", "c", "spec.sinks[0].optionsFrom[0].configMapRef.name"),
        ("Secret", "s", "spec.sinks[0].optionsFrom[1].secretRef.name"),
        ("ConfigMap", "code", "spec.deps.configMaps[0]"),
    ]
