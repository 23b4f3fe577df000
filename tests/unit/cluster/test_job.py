"""The job of a pod: its manifest, and those of older revisions beside it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sinkruntime.cli.secrecy import conceal, hide
from sinkruntime.cluster.job import load_pod_job
from sinkruntime.cluster.surroundings import Surroundings
from sinkruntime.errors import ConfigurationError, ManifestError
from sinkruntime.sinks.file import FileSink


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = list(sys.path)
    yield
    sys.path[:] = before
    conceal([])


def write(folder: Path, name: str = "job.json", **spec: Any) -> Path:
    body = {
        "apiVersion": "sinkjob.io/v1alpha1",
        "kind": "SinkJob",
        "metadata": {"name": "flights", "namespace": "data", "uid": "u", "generation": 4},
        "spec": {
            "source": {"format": "rate"},
            "sinks": [{"name": "lake", "type": "file", "options": {"path": "/lake"}}],
            **spec,
        },
    }
    path = folder / "job" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body))
    return path


def told(folder: Path, job: str = "flights") -> Surroundings:
    return Surroundings.read(
        {"SINKJOB_NAMESPACE": "data", "SINKJOB_JOB": job, "SINKJOB_POD_NAME": "p", "SINKJOB_MOUNTS": str(folder)}
    )


def secret(folder: Path, name: str, key: str, value: str) -> None:
    path = folder / "secrets" / name / key
    path.parent.mkdir(parents=True)
    path.write_text(value)


def test_secrets_are_read_where_they_are_mounted_and_hidden_from_then_on(tmp_path: Path) -> None:
    secret(tmp_path, "keys", "path", "/secret/lake")
    sinks = [{"name": "lake", "type": "file", "optionsFrom": [{"secretRef": {"name": "keys"}}]}]
    job = load_pod_job(write(tmp_path, sinks=sinks), told(tmp_path))
    made = job.sinks_of(job.revision, "ledger")["lake"]
    assert isinstance(made, FileSink)
    assert made.options.path == "/secret/lake"
    assert made.identity.job == job.name == "data/flights"
    assert hide("at /secret/lake") == "at ***"


def test_a_secret_that_has_changed_is_seen_by_the_next_commit(tmp_path: Path) -> None:
    secret(tmp_path, "keys", "path", "/former")
    sinks = [{"name": "lake", "type": "file", "optionsFrom": [{"secretRef": {"name": "keys"}}]}]
    job = load_pod_job(write(tmp_path, sinks=sinks), told(tmp_path))
    (tmp_path / "secrets" / "keys" / "path").write_text("/present")
    assert job.sinks_of(job.revision, "l")["lake"].options.path == "/present"


def test_an_older_revision_is_committed_with_its_own_sinks_though_its_sources_secret_is_gone(tmp_path: Path) -> None:
    job = load_pod_job(write(tmp_path), told(tmp_path))
    former = {"format": "rate", "optionsFrom": [{"secretRef": {"name": "gone"}}]}
    sinks = [{"name": "former", "type": "file", "options": {"path": "/former"}}]
    write(tmp_path, "0123456789abcdef.json", source=former, sinks=sinks)
    assert list(job.sinks_of("0123456789abcdef", "l")) == ["former"]


def test_a_revision_that_is_not_there_is_told_by_its_name(tmp_path: Path) -> None:
    job = load_pod_job(write(tmp_path), told(tmp_path))
    with pytest.raises(ConfigurationError, match="revision fedcba9876543210 of data/flights") as caught:
        job.sinks_of("fedcba9876543210", "l")
    assert caught.value.reason == "RevisionLost"


def test_code_in_config_maps_can_be_imported(tmp_path: Path) -> None:
    path = tmp_path / "configmaps" / "code" / "steps_of_this_test.py"
    path.parent.mkdir(parents=True)
    path.write_text("ANSWER = 42\n")
    job = load_pod_job(write(tmp_path, deps={"configMaps": ["code"]}), told(tmp_path))
    import steps_of_this_test  # type: ignore[import-not-found]

    assert steps_of_this_test.ANSWER == 42
    assert job.code == [str(path.parent)]
    del sys.modules["steps_of_this_test"]


@pytest.mark.parametrize(
    ("text", "words"), [("", "is not JSON"), ("[]", "is not an object"), ('{"kind": "Pod"}', "not a SinkJob")]
)
def test_what_is_no_manifest_is_told_as_one_that_is_invalid(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path)
    path.write_text(text)
    with pytest.raises(ManifestError, match=words):
        load_pod_job(path, told(tmp_path))


def test_a_manifest_that_is_not_there_is_told_and_so_is_one_of_another_job(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="cannot be read"):
        load_pod_job(tmp_path / "job.json", told(tmp_path))
    with pytest.raises(ConfigurationError, match="this pod is of data/another"):
        load_pod_job(write(tmp_path), told(tmp_path, "another"))
