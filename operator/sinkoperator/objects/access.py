"""What a job's own pods may do: ServiceAccount, Role, RoleBinding. `apply` calls it before a pod is created.

Rights cover the job's own ledger by name, its executors, and no Secret. A Role cannot say "names that begin with", so
payload ConfigMaps, whose names are made later, need `get` and `create` without a name.
"""

from __future__ import annotations

from typing import Any

from sinkoperator import names
from sinkoperator.coordination import in_pod
from sinkoperator.facts import facts_of
from sinkoperator.objects.manifests import others
from sinkoperator.objects.metadata import metadata
from sinkoperator.objects.pod import service_account_of
from sinkoperator.observed import Observed
from sinkruntime.kube.kinds import ROLE, ROLE_BINDING, SERVICE_ACCOUNT, Kind, Object

#: Spark's, for executors; seen to be enough with Spark 4.1.
_EXECUTORS = ("create", "delete", "deletecollection", "get", "list", "patch", "watch")
_LEDGER = ("get", "list", "patch", "update", "watch")
_PAYLOADS = ("create", "get")
#: Who coordinates removes payloads, too, and looks for those that nothing refers to.
_PAYLOADS_OF_COORDINATOR = ("create", "delete", "get", "list")


def access(observed: Observed) -> tuple[tuple[Kind, Object, tuple[str, ...]], ...]:
    """Each object with the fields that are put right where they differ."""
    job = observed.job
    name = names.access_name(job.name)
    about = metadata(job, name, names.DRIVER)
    specs = [job.raw, *others(observed, "").values()]
    accounts = sorted({service_account_of(observed, raw, name) for raw in specs})
    role = {
        "apiVersion": ROLE.api_version,
        "kind": ROLE.name,
        "metadata": about,
        "rules": _rules(observed),
    }
    binding = {
        "apiVersion": ROLE_BINDING.api_version,
        "kind": ROLE_BINDING.name,
        "metadata": about,
        "roleRef": {"apiGroup": ROLE.group, "kind": ROLE.name, "name": name},
        "subjects": [
            {"kind": SERVICE_ACCOUNT.name, "name": account, "namespace": job.namespace} for account in accounts
        ],
    }
    made: list[tuple[Kind, Object, tuple[str, ...]]] = []
    if name in accounts:
        body = {"apiVersion": SERVICE_ACCOUNT.api_version, "kind": SERVICE_ACCOUNT.name, "metadata": about}
        made.append((SERVICE_ACCOUNT, body, ()))
    return (*made, (ROLE, role, ("rules",)), (ROLE_BINDING, binding, ("subjects",)))


def _rules(observed: Observed) -> list[dict[str, Any]]:
    payloads = _PAYLOADS_OF_COORDINATOR if in_pod(facts_of(observed)) else _PAYLOADS
    ledger = names.ledger_name(observed.job.name)
    return [
        {"apiGroups": [""], "resources": ["pods"], "verbs": list(_EXECUTORS)},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": list(_LEDGER), "resourceNames": [ledger]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": list(payloads)},
    ]
