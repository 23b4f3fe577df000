"""A real API server takes the objects of a job, in a namespace that enforces Pod Security `restricted`."""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import replace

from sinkoperator import names, objects
from sinkoperator.actions import CreateDriver, EnsureCommitter
from sinkoperator.observed import Observed
from sinkruntime.kube import CONFIG_MAP, CONTROLLER_REVISION, NAMESPACE, POD, SINK_JOB, Api
from sinkruntime.kube.transport import Request
from sinkruntime.ledger.configmap import ConfigMapLedgerStore, LedgerPlace
from sinkruntime.ledger.payloads import object_name
from sinkruntime.protocol.ledger import Ledger
from sinkruntime.spec.digest import revision as revision_of
from sinkruntime.spec.models import API_VERSION, KIND
from tests.kube.control_plane import ControlPlane
from tests.unit.operator.plan_world import NAME, ledger, observed, raw_of
from tests.unit.operator.test_objects import REFERENCES

#: The garbage collector hears of objects by watches of its own.
SEEN_SECONDS = 2.0
COLLECTED_SECONDS = 150.0  # its watches are slow to come back after other tests have ended the API server
RESTRICTED = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}


async def applied(api: Api, namespace: str) -> Observed:
    """A SinkJob that is really there, with all kinds of references, as the operator has gathered it."""
    raw = raw_of(**REFERENCES)
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": NAME}, "spec": raw}
    made = await api.create(SINK_JOB, namespace, body)
    seen = observed(ledger(1), raw=raw)
    return replace(seen, job=replace(seen.job, namespace=namespace, uid=made["metadata"]["uid"]))


async def test_pods_rights_and_revision_are_taken_as_they_are(api: Api, namespace: str) -> None:
    await api.patch(NAMESPACE, "", namespace, RESTRICTED)
    seen = await applied(api, namespace)
    assert seen.job.spec is not None
    name = revision_of(seen.job.spec)
    await api.create(CONTROLLER_REVISION, namespace, objects.revision(seen, name))
    for kind, body, _ in objects.access(seen):
        await api.create(kind, namespace, body)
    config, pod = objects.driver(seen, CreateDriver(1, name))
    await api.create(CONFIG_MAP, namespace, config)
    created = await api.create(POD, namespace, pod)
    assert created["spec"]["serviceAccountName"] == pod["spec"]["serviceAccountName"]
    (kept,) = (await api.list(CONTROLLER_REVISION, namespace))[0]
    assert kept["data"]["spec"] == seen.job.raw


async def test_the_committer_pod_is_taken_as_it_is(api: Api, namespace: str) -> None:
    await api.patch(NAMESPACE, "", namespace, RESTRICTED)
    seen = replace(await applied(api, namespace), run_on={"lake": "Job"})
    assert seen.job.spec is not None
    for right, body, _ in objects.access(seen):
        await api.create(right, namespace, body)
    config, pod = objects.committer(seen, EnsureCommitter(1, revision_of(seen.job.spec)))
    await api.create(CONFIG_MAP, namespace, config)
    await api.create(POD, namespace, pod)


async def test_a_deletion_in_the_foreground_leaves_what_pending_checkpoints_need(
    api: Api, namespace: str, control_plane: ControlPlane
) -> None:
    """GitOps tools delete so: the garbage collector takes what the SinkJob owns at once, whatever finalizers wait."""
    seen = await applied(api, namespace)
    assert seen.job.spec is not None
    name = revision_of(seen.job.spec)
    await api.patch(SINK_JOB, namespace, NAME, {"metadata": {"finalizers": [names.JOB_FINALIZER]}})
    store = ConfigMapLedgerStore(api, LedgerPlace(namespace, NAME, seen.job.uid))
    await store.create(Ledger("ledger-1", f"{namespace}/{NAME}"))
    committables = b"committables"
    await store.put_object(object_name(1, hashlib.sha256(committables).hexdigest()), committables)
    await api.create(CONTROLLER_REVISION, namespace, objects.revision(seen, name))
    config, _ = objects.driver(seen, CreateDriver(1, name))
    await api.create(CONFIG_MAP, namespace, config)
    await asyncio.sleep(SEEN_SECONDS)  # until the collector has heard of them all
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
    await api._call("delete", SINK_JOB, Request("DELETE", SINK_JOB.path(namespace, NAME), body=options, writes=True))
    deadline = time.monotonic() + COLLECTED_SECONDS
    while await api.get(CONFIG_MAP, namespace, config["metadata"]["name"]) is not None:
        assert time.monotonic() < deadline, "the garbage collector took nothing, so this test shows nothing"
        await asyncio.sleep(0.2)
    await asyncio.sleep(SEEN_SECONDS)
    left = [*(await api.list(CONFIG_MAP, namespace, labels=names.selector(NAME)))[0]]
    left += (await api.list(CONTROLLER_REVISION, namespace))[0]
    kinds = sorted(body["metadata"]["labels"][names.COMPONENT_LABEL] for body in left)
    assert kinds == ["ledger", "payload", "revision"]
    assert [body["metadata"]["name"] for body in left if "deletionTimestamp" in body["metadata"]] == []
