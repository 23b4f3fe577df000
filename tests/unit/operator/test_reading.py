"""What is read of pods, ledgers and revisions, as the API server and the kubelet write them."""

from __future__ import annotations

import json
from typing import Any

from sinkoperator import names, reading
from sinkoperator.manifests import Read
from sinkruntime.ledger.configmap import KEY
from sinkruntime.protocol import codec
from sinkruntime.protocol.ledger import Ledger

JOB_UID = "job-uid"


def pod(status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """A driver's pod of epoch 3."""
    labels = {names.EPOCH_LABEL: "3", names.REVISION_LABEL: "abc", names.COMPONENT_LABEL: names.DRIVER}
    return {
        "metadata": {
            "name": "j-driver-3",
            "namespace": "n",
            "uid": "pod-uid",
            "labels": labels,
            "annotations": {names.INTENT_ANNOTATION: "abc/0/x"},
            "creationTimestamp": "2026-11-21T07:00:00Z",
            "ownerReferences": [{"uid": JOB_UID, "controller": True}],
            **metadata,
        },
        "spec": {"terminationGracePeriodSeconds": 60},
        "status": status or {},
    }


def terminated(**state: Any) -> dict[str, Any]:
    """The status of a pod whose container ended."""
    phase = "Succeeded" if state.get("exitCode") == 0 else "Failed"
    return {"phase": phase, "containerStatuses": [{"name": "driver", "state": {"terminated": state}}]}


def test_a_pod_that_nobody_has_looked_at_is_pending() -> None:
    read = reading.driver_pod(pod(), JOB_UID)

    assert (read.phase, read.epoch, read.revision, read.intent) == ("Pending", 3, "abc", "abc/0/x")
    assert read.ours
    assert not read.ended
    assert read.exit_code is None


def test_another_jobs_pod_is_not_ours() -> None:
    assert not reading.driver_pod(pod(), "another").ours
    assert not reading.driver_pod(pod(ownerReferences=[]), JOB_UID).ours


def test_a_running_pod_is_ready_when_its_container_is() -> None:
    container = {"name": "driver", "ready": True, "state": {"running": {"startedAt": "2026-11-21T07:00:10Z"}}}
    read = reading.driver_pod(pod({"phase": "Running", "containerStatuses": [container]}), JOB_UID)

    assert read.ready
    assert read.started == read.created + 10


def test_an_end_has_exit_code_times_and_last_word() -> None:
    said = json.dumps({"reason": "LedgerLost", "message": "gone", "advice": "look", "path": "spec.checkpoint"})
    times = {"startedAt": "2026-11-21T07:00:10Z", "finishedAt": "2026-11-21T07:01:10Z"}
    read = reading.driver_pod(pod(terminated(exitCode=1, message=said, **times)), JOB_UID)

    assert read.ended
    assert (read.exit_code, read.oom_killed) == (1, False)
    assert read.started is not None
    assert read.finished == read.started + 60
    assert read.termination is not None
    assert read.termination.reason == "LedgerLost"
    assert read.termination.path == "spec.checkpoint"


def test_a_last_word_that_is_no_json_is_shown_as_it_is() -> None:
    said = reading.termination("Traceback: no\n" * 500)

    assert said is not None
    assert said.reason == ""
    assert len(said.message) == reading.TEXT_CHARS_MAX
    assert reading.termination("  ") is None
    assert reading.termination("[1]") is not None


def test_out_of_memory_and_eviction_are_told_apart() -> None:
    assert reading.driver_pod(pod(terminated(exitCode=137, reason="OOMKilled")), JOB_UID).oom_killed
    assert reading.driver_pod(pod({"phase": "Failed", "reason": "Evicted"}), JOB_UID).pod_reason == "Evicted"
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    read = reading.driver_pod(pod({"phase": "Failed", "conditions": [disrupted]}), JOB_UID)
    assert read.pod_reason == "PreemptionByScheduler"


def test_what_a_pod_waits_for_is_told() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    read = reading.driver_pod(pod({"containerStatuses": [{"name": "driver", "state": waiting}]}), JOB_UID)
    assert read.waiting is not None
    assert (read.waiting.reason, read.waiting.message) == ("ImagePullBackOff", "no such image")

    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    assert reading.driver_pod(pod({"conditions": [scheduled]}), JOB_UID).unschedulable == "0/1 nodes"


def test_deletion_is_counted_from_when_it_was_asked_for() -> None:
    read = reading.driver_pod(pod(deletionTimestamp="2026-11-21T07:01:00Z", deletionGracePeriodSeconds=45), JOB_UID)

    assert read.deleting_since == read.created + 15
    assert read.grace_seconds == 45


def test_a_foreign_container_says_nothing_of_the_driver() -> None:
    sidecar = {"name": "istio", "ready": True, "state": {"terminated": {"exitCode": 9}}}
    read = reading.driver_pod(pod({"phase": "Running", "containerStatuses": [sidecar]}), JOB_UID)

    assert not read.ready
    assert read.exit_code is None


def test_executors_are_counted_for_their_epoch_only() -> None:
    def executor(phase: str, epoch: str) -> dict[str, Any]:
        labels = {names.COMPONENT_LABEL: names.EXECUTOR, names.EPOCH_LABEL: epoch}
        return {"metadata": {"name": "e", "labels": labels}, "status": {"phase": phase}}

    pods = [
        executor("Running", "3"),
        executor("Running", "2"),
        executor("Pending", "3"),
        executor("Failed", "3"),
        pod(),
    ]
    counts = reading.executors(pods, 3, None)

    assert (counts.running, counts.pending, counts.failed) == (1, 1, 1)


def config_map(text: str | None, **metadata: Any) -> dict[str, Any]:
    """A ledger's ConfigMap."""
    body: dict[str, Any] = {"name": "j-ledger", "namespace": "n", "uid": "u", "resourceVersion": "5", **metadata}
    return {"metadata": body, "data": {} if text is None else {KEY: text}}


def test_a_ledger_has_an_owner_and_a_finalizer() -> None:
    notes = {names.OWNER_ANNOTATION: JOB_UID}
    text = codec.encode(Ledger("id", "n/j", epoch=2))
    read = reading.ledger_object(config_map(text, annotations=notes, finalizers=[names.LEDGER_FINALIZER]))

    assert read.ledger is not None
    assert read.ledger.epoch == 2
    assert (read.owner_uid, read.finalizer, read.deleting) == (JOB_UID, True, False)
    orphan = reading.ledger_object(config_map(text, deletionTimestamp="2026-11-21T07:01:00Z"))
    assert (orphan.owner_uid, orphan.finalizer, orphan.deleting) == ("", False, True)


def test_a_ledger_that_cannot_be_used_says_why() -> None:
    edited = reading.ledger_object(config_map("{not json"))
    emptied = reading.ledger_object(config_map(None))
    newer = reading.ledger_object(config_map(codec.encode(Ledger("id", "n/j")).replace('"format":1', '"format":999')))

    assert edited.ledger is None
    assert edited.trouble is not None
    assert emptied.trouble is not None
    assert (edited.trouble.reason, emptied.trouble.reason) == ("LedgerCorrupt", "LedgerCorrupt")
    assert newer.trouble is not None
    assert newer.trouble.reason in ("LedgerFormatTooNew", "LedgerCorrupt")


def test_a_sink_job_is_read_with_what_is_wrong_with_it() -> None:
    body = {
        "metadata": {
            "name": "j", "namespace": "n", "uid": JOB_UID, "generation": 4,
            "creationTimestamp": "2026-11-21T07:00:00Z", "deletionTimestamp": "2026-11-21T07:00:30Z",
            "finalizers": [names.JOB_FINALIZER],
        },
        "spec": {"suspend": True},
    }  # fmt: skip
    job = reading.job_object(body, Read(None))

    assert job.deleting_since == job.created + 30
    assert job.finalizers == (names.JOB_FINALIZER,)
    assert (job.generation, job.spec, job.raw) == (4, None, {"suspend": True})
