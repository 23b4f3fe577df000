"""The committer's Pod (`runOn: Job`) with its manifests. `apply` calls it for an `EnsureCommitter`."""

from __future__ import annotations

from sinkoperator import names
from sinkoperator.actions import EnsureCommitter
from sinkoperator.facts import facts_of
from sinkoperator.objects.manifests import files, raw_of, spec_of
from sinkoperator.objects.metadata import metadata
from sinkoperator.objects.pod import Process, pod, service_account_of
from sinkoperator.observed import Observed
from sinkruntime.kube.kinds import CONFIG_MAP, Object

CONTAINER = "committer"
CPU = "100m"
#: Python, Arrow and a client library fit into it; more where the manifest gives the driver's Python more.
MEMORY_BYTES_MIN = 512 * 1024**2


def committer(observed: Observed, action: EnsureCommitter) -> tuple[Object, Object]:
    """The ConfigMap and the Pod of a committer, to be created in this order."""
    job, facts = observed.job, facts_of(observed)
    raw = raw_of(observed, action.revision)
    assert raw is not None, "a plan starts only revisions that are kept"
    spec = spec_of(observed, raw)
    assert spec is not None, "a revision is of a manifest that was valid"
    name = names.committer_name(job.name, action.number)
    labels = {names.REVISION_LABEL: action.revision}
    notes = {names.INTENT_ANNOTATION: facts.intent}
    config = {
        "apiVersion": CONFIG_MAP.api_version,
        "kind": CONFIG_MAP.name,
        "metadata": metadata(job, name, names.COMMITTER, labels),
        "immutable": True,
        "data": files(observed, action.revision),
    }
    memory = max(MEMORY_BYTES_MIN, spec.driver.memory_overhead.bytes)
    process = Process(CONTAINER, ("sinkjob", "commit"), {}, CPU, memory)
    made = pod(observed, spec, metadata(job, name, names.COMMITTER, labels, notes), process, name)
    made["spec"]["serviceAccountName"] = service_account_of(observed, raw, names.access_name(job.name))
    return config, made
