"""A real API server takes the objects of a job, in a namespace that enforces Pod Security `restricted`."""

from __future__ import annotations

from dataclasses import replace

from sinkoperator import objects
from sinkoperator.actions import CreateDriver, EnsureCommitter
from sinkoperator.observed import Observed
from sinkruntime.kube import CONFIG_MAP, CONTROLLER_REVISION, NAMESPACE, POD, SINK_JOB, Api
from sinkruntime.spec.digest import revision as revision_of
from sinkruntime.spec.models import API_VERSION, KIND
from tests.unit.operator.plan_world import NAME, ledger, observed, raw_of
from tests.unit.operator.test_objects import REFERENCES

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
    for kind, body in objects.committer(seen, EnsureCommitter(1, revision_of(seen.job.spec))):
        await api.create(kind, namespace, body)
