"""The driver's Pod and the ConfigMap with its manifests. `apply` calls `driver` for a `CreateDriver`.

There is no Service: executors reach the driver by its pod's address, and nobody else has to.
"""

from __future__ import annotations

from sinkoperator import names
from sinkoperator.actions import CreateDriver
from sinkoperator.facts import facts_of
from sinkoperator.objects.manifests import files, raw_of, spec_of
from sinkoperator.objects.metadata import metadata
from sinkoperator.objects.pod import Process, pod, service_account_of
from sinkoperator.observed import Observed
from sinkruntime.kube.kinds import CONFIG_MAP, Object

CONTAINER = "driver"


def driver(observed: Observed, action: CreateDriver) -> tuple[Object, Object]:
    """The ConfigMap and the Pod of the driver of an epoch, to be created in this order."""
    job, facts = observed.job, facts_of(observed)
    raw = raw_of(observed, action.revision)
    assert raw is not None, "a plan starts only revisions that are kept"
    spec = spec_of(observed, raw)
    assert spec is not None, "a revision is of a manifest that was valid"
    name = names.driver_name(job.name, action.epoch)
    labels = {names.EPOCH_LABEL: str(action.epoch), names.REVISION_LABEL: action.revision}
    notes = {
        names.INTENT_ANNOTATION: facts.intent,
        names.COMMIT_ONLY_ANNOTATION: "true" if action.commit_only else "false",
        "kubectl.kubernetes.io/default-container": CONTAINER,
    }
    config = {
        "apiVersion": CONFIG_MAP.api_version,
        "kind": CONFIG_MAP.name,
        "metadata": metadata(job, name, names.DRIVER, labels),
        "immutable": True,
        "data": files(observed, action.revision),
    }
    process = Process(
        CONTAINER,
        ("sinkjob", "driver", "--commit-only") if action.commit_only else ("sinkjob", "driver"),
        {"EPOCH": str(action.epoch)},
        str(spec.driver.cores),
        spec.driver.memory.bytes + spec.driver.memory_overhead.bytes,
    )
    made = pod(observed, spec, metadata(job, name, names.DRIVER, labels, notes), process, name)
    made["spec"]["serviceAccountName"] = service_account_of(observed, raw, names.access_name(job.name))
    return config, made
