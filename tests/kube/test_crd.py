"""The API server takes our CRD, keeps a manifest as it was written, and refuses what contradicts itself."""

from __future__ import annotations

import copy
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from sinkruntime.kube import SINK_JOB, Api, Invalid, Object
from sinkruntime.spec.crd import FILE_NAME
from tests.servers.programs import KUBECTL, ProgramMissingError, locate

ROOT = Path(__file__).resolve().parents[2]
FULL = ROOT / "tests" / "unit" / "spec" / "full.yaml"
KUBECTL_SECONDS = 60


def job(**spec: Any) -> Object:
    """A small SinkJob, with these fields of `spec` on top."""
    small = {
        "source": {"format": "rate"},
        "checkpoint": {"location": "s3a://bucket/a"},
        "sinks": [{"name": "lake", "type": "file", "options": {"path": "s3a://bucket/b"}}],
    }
    return {"metadata": {"name": "flights"}, "spec": {**small, **spec}}


def sink(**fields: Any) -> dict[str, Any]:
    return {"name": "lake", "type": "file", "options": {"path": "s3a://bucket/b"}, **fields}


@pytest.fixture
def kubectl(kubeconfig: Path, namespace: str) -> Callable[..., str]:
    try:
        program = locate(KUBECTL)
    except ProgramMissingError as error:
        pytest.skip(f"missing program: {error}")

    def run(*arguments: str) -> str:
        command = [str(program), "--namespace", namespace, *arguments]
        environment = os.environ | {"KUBECONFIG": str(kubeconfig)}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=KUBECTL_SECONDS, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


async def test_a_manifest_is_kept_as_it_was_written(api: Api, namespace: str) -> None:
    manifest = yaml.safe_load(FULL.read_text())
    manifest["metadata"]["namespace"] = namespace
    sent = copy.deepcopy(manifest["spec"])
    kept = await api.create(SINK_JOB, namespace, manifest)
    assert kept["spec"] == sent


async def test_a_small_manifest_gets_no_defaults(api: Api, namespace: str) -> None:
    assert (await api.create(SINK_JOB, namespace, job()))["spec"] == job()["spec"]


def test_the_crd_and_a_job_can_be_applied_again(kubectl: Callable[..., str]) -> None:
    crd = str(ROOT / "crds" / FILE_NAME)
    kubectl("apply", "--server-side", "--force-conflicts", "-f", crd)
    kubectl("apply", "-f", crd)
    assert "unchanged" in kubectl("apply", "-f", crd)


async def refusal(api: Api, namespace: str, body: Object) -> str:
    with pytest.raises(Invalid) as caught:
        await api.create(SINK_JOB, namespace, body, dry_run=True)
    return caught.value.message


@pytest.mark.parametrize(
    ("body", "path", "message"),
    [
        (job(transform=[{"sql": "SELECT 1", "python": "a:b"}]), "spec.transform[0]", "exactly one of sql and python"),
        (job(transform=[{}]), "spec.transform[0]", "exactly one of sql and python"),
        (
            job(source={"format": "rate", "optionsFrom": [{}]}),
            "spec.source.optionsFrom[0]",
            "exactly one of secretRef, configMapRef, fileRef, envRef",
        ),
        (
            job(sinks=[sink(optionsFrom=[{"secretRef": {"name": "a"}, "configMapRef": {"name": "a"}}])]),
            "spec.sinks[0].optionsFrom[0]",
            "exactly one of secretRef",
        ),
        (job(trigger={"type": "AvailableNow", "interval": "1s"}), "spec.trigger", "interval has no meaning"),
        (job(sinks=[sink(onFailure="Warn")]), "spec.sinks[0]", "onFailure Warn needs guarantee AtLeastOnce"),
        (
            job(sinks=[sink(onFailure="Warn", guarantee="ExactlyOnce")]),
            "spec.sinks[0]",
            "onFailure Warn needs guarantee AtLeastOnce",
        ),
        (job(sinks=[sink(deadLetter={"sink": "lake"})]), "spec.sinks[0]", "deadLetter.sink must be another sink"),
        (job(sinks=[sink(deadLetter={"sink": "none"})]), "spec", "deadLetter.sink must be a sink of this job"),
        (
            job(dynamicAllocation={"enabled": True, "minExecutors": 5}),
            "spec.dynamicAllocation",
            "maxExecutors is less than minExecutors",
        ),
        (job(mode="Batch", trigger={"type": "AvailableNow"}), "spec", "a Batch job makes one checkpoint"),
        (job(mode="Batch", outputMode="Update"), "spec", "gives its whole result once"),
        ({**job(), "metadata": {"name": "a.b"}}, "", "metadata.name must not hold a dot"),
        ({**job(), "metadata": {"name": "a" * 64}}, "", "metadata.name must be at most 63 characters"),
        (job(mode="Sometimes"), "spec.mode", "Unsupported value"),
        (job(commit={"maxPending": 17}), "spec.commit.maxPending", "should be less than or equal to 16"),
        (job(commit={"timeout": "soon"}), "spec.commit.timeout", "should match"),
        (job(sinks=[]), "spec.sinks", "should have at least 1 items"),
        ({"metadata": {"name": "flights"}}, "spec", "Required value"),
    ],
)
async def test_a_contradiction_is_refused_with_its_place(
    api: Api, namespace: str, body: Object, path: str, message: str
) -> None:
    said = await refusal(api, namespace, body)
    assert message in said
    assert path in said


async def test_an_unknown_field_is_refused_where_the_client_asks_for_it(
    kubectl: Callable[..., str], tmp_path: Path
) -> None:
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump({"apiVersion": SINK_JOB.api_version, "kind": "SinkJob", **job(tabel="x")}))
    with pytest.raises(AssertionError, match=r"unknown field .spec.tabel."):
        kubectl("apply", "-f", str(manifest))  # kubectl asks for strict validation by itself


ICEBERG = [{"name": "lake", "type": "iceberg"}]


@pytest.mark.parametrize(
    ("before", "edit", "message"),
    [
        (job(), {"checkpoint": {"location": "s3a://bucket/other"}}, "change it together with recovery.nonce"),
        (job(), {"checkpoint": {"location": None}}, "change it together with recovery.nonce"),
        (job(), {"checkpoint": None}, "change it together with recovery.nonce"),
        (job(), {"mode": "Batch"}, "mode cannot change in the life of a job"),
        (job(), {"sinks": ICEBERG}, "a sink keeps its type"),
        (job(recovery={"nonce": 3}), {"sinks": ICEBERG, "recovery": {"nonce": 3}}, "a sink keeps its type"),
    ],
)
async def test_what_is_fixed_changes_only_with_a_persons_word(
    api: Api, namespace: str, before: Object, edit: Object, message: str
) -> None:
    await api.create(SINK_JOB, namespace, before)
    with pytest.raises(Invalid, match=message):
        await api.patch(SINK_JOB, namespace, "flights", {"spec": edit})
    changed = await api.patch(SINK_JOB, namespace, "flights", {"spec": {**edit, "recovery": {"nonce": 4}}})
    assert changed["spec"]["recovery"]["nonce"] == 4


@pytest.mark.parametrize(
    "edit",
    [
        {"checkpoint": {"optionsFrom": [{"secretRef": {"name": "a"}}]}},
        {"mode": "Streaming"},
        {"suspend": True},
        {"sinks": [{"name": "other", "type": "iceberg"}]},
        {"sinks": [sink(options={"path": "elsewhere"}), {"name": "other", "type": "console"}]},
        {"restartNonce": 1, "image": "a"},
    ],
)
async def test_any_other_edit_is_taken(api: Api, namespace: str, edit: Object) -> None:
    await api.create(SINK_JOB, namespace, job())
    await api.patch(SINK_JOB, namespace, "flights", {"spec": edit})


async def test_the_status_is_written_apart_from_the_spec(api: Api, namespace: str) -> None:
    await api.create(SINK_JOB, namespace, {**job(), "status": {"phase": "Mine"}})
    written = await api.patch(
        SINK_JOB, namespace, "flights", {"spec": {"suspend": True}, "status": {"epoch": 3}}, subresource="status"
    )
    assert written["status"] == {"epoch": 3}
    assert "suspend" not in written["spec"]
    assert written["metadata"]["generation"] == 1


async def test_the_columns_tell_the_story(api: Api, namespace: str, kubectl: Callable[..., str]) -> None:
    await api.create(SINK_JOB, namespace, job(sinks=[sink(), {"name": "rejects", "type": "console"}]))
    ready = {"type": "Ready", "status": "True", "reason": "Running", "message": "all-is-well"}
    ready["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    commit = {"lastCheckpoint": 41, "pending": 2, "inDoubt": 1, "lastCommitTime": "2026-01-01T00:00:00Z"}
    status = {"phase": "Running", "conditions": [ready], "epoch": 3, "commit": commit}
    status |= {"sinks": "file,console", "restarts": {"total": 5}, "driver": {"podName": "flights-driver-3"}}
    await api.patch(SINK_JOB, namespace, "flights", {"status": status}, subresource="status")
    names, values = (line.split() for line in kubectl("get", "sj").splitlines())
    assert names == ["NAME", "PHASE", "READY", "SINKS", "LAST-COMMIT", "PENDING", "EPOCH", "RESTARTS", "AGE"]
    assert values[:4] == ["flights", "Running", "True", "file,console"]
    assert values[5:8] == ["2", "3", "5"]
    names, values = (line.split() for line in kubectl("get", "sinkjobs", "-o", "wide").splitlines())
    assert names[9:] == ["REASON", "DRIVER", "CHECKPOINT", "IN-DOUBT", "MESSAGE"]
    assert values[9:] == ["Running", "flights-driver-3", "41", "1", "all-is-well"]
