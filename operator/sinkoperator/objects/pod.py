"""What the pods of a job have in common: the restricted security context, mounts, environment, the user's template.

Used by `driver` and `committer`. The pod passes Pod Security `restricted` as it is. The manifest's podTemplate is laid
over our defaults, and over it what the operator relies on: names, command, environment, mounts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sinkoperator.objects.manifests import others, spec_of
from sinkoperator.objects.merge import merged
from sinkoperator.observed import Observed
from sinkruntime.cluster.surroundings import PREFIX
from sinkruntime.kube.kinds import POD, Object
from sinkruntime.spark.kubernetes import SECRET_MODE, TEMPORARY, USER_ID, mounted_objects
from sinkruntime.spec.models import SinkJobSpec

MOUNTS = "/etc/sinkjob"
_MEBIBYTE = 1024**2

#: Of a process that a pod's end is to wait for; what a manifest's podTemplate may change.
_CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
_POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "fsGroup": USER_ID,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@dataclass(frozen=True, slots=True)
class Process:
    """The one process of a pod: the container's name, what it runs, its own variables, what it asks for."""

    container: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    cpu: str
    memory_bytes: int


def pod(observed: Observed, spec: SinkJobSpec, about: Object, process: Process, config: str) -> Object:
    """The Pod with this metadata that runs `process`; `config` is the ConfigMap with its manifests."""
    template = _template(spec.driver.pod_template, process.container)
    inner = merged(_defaults(observed, spec, process), template.get("spec") or {})
    grace = inner.get("terminationGracePeriodSeconds")
    inner = merged(inner, _fixed(observed, spec, process, config, grace))
    return {
        "apiVersion": POD.api_version,
        "kind": POD.name,
        "metadata": merged(_metadata(template), about),
        "spec": inner,
    }


def image_of(observed: Observed, spec: SinkJobSpec) -> str:
    """The manifest's, or the operator's default."""
    return spec.image or observed.settings.driver_image


def service_account_of(observed: Observed, raw: Mapping[str, Any], own: str) -> str:
    """The manifest's, the operator's default, or the job's own."""
    return str(raw.get("serviceAccountName") or observed.settings.service_account or own)


def _template(given: Mapping[str, Any], container: str) -> dict[str, Any]:
    """The manifest's podTemplate; its container `driver` speaks of whatever our process is called."""
    template = dict(given)
    inner = template.get("spec")
    if container == "driver" or not isinstance(inner, Mapping):
        return template
    containers = inner.get("containers")
    ours = [
        {name: value for name, value in each.items() if name != "resources"} | {"name": container}
        for each in (containers if isinstance(containers, list) else [])
        if isinstance(each, Mapping) and each.get("name") == "driver"
    ]
    template["spec"] = {**inner, "containers": ours}
    return template


def _metadata(template: Mapping[str, Any]) -> dict[str, Any]:
    given = template.get("metadata")
    kept = given if isinstance(given, Mapping) else {}
    return {name: kept[name] for name in ("labels", "annotations") if isinstance(kept.get(name), Mapping)}


def _defaults(observed: Observed, spec: SinkJobSpec, process: Process) -> dict[str, Any]:
    """What the podTemplate may change."""
    memory = f"{-(-process.memory_bytes // _MEBIBYTE)}Mi"
    container = {
        "name": process.container,
        "securityContext": _CONTAINER_SECURITY,
        "resources": {"requests": {"cpu": process.cpu, "memory": memory}, "limits": {"memory": memory}},
        "workingDir": TEMPORARY,
    }
    return {
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": observed.settings.stop_grace_seconds,
        "securityContext": _POD_SECURITY,
        "containers": [container],
    }


def _fixed(observed: Observed, spec: SinkJobSpec, process: Process, config: str, grace: object) -> dict[str, Any]:
    """What the operator and the process rely on."""
    volumes, mounts = _volumes(observed, spec, config)
    variables = {
        "NAMESPACE": observed.job.namespace,
        "JOB": observed.job.name,
        "IMAGE": image_of(observed, spec),
        "GRACE_SECONDS": str(grace),
        **process.environment,
    }
    fields = {"POD_NAME": "metadata.name", "POD_UID": "metadata.uid", "POD_IP": "status.podIP"}
    env: list[dict[str, Any]] = [{"name": f"{PREFIX}{name}", "value": value} for name, value in variables.items()]
    env += [
        {"name": f"{PREFIX}{name}", "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()
    ]
    container = {
        "name": process.container,
        "image": image_of(observed, spec),
        "imagePullPolicy": spec.image_pull_policy,
        "command": list(process.command),
        "args": [],
        "env": env,
        "volumeMounts": mounts,
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }
    secrets = [*(ref.name for ref in spec.image_pull_secrets), *observed.settings.image_pull_secrets]
    fixed: dict[str, Any] = {
        "restartPolicy": "Never",  # another process under the same epoch would be refused
        "automountServiceAccountToken": True,
        "containers": [container],
        "volumes": volumes,
    }
    return fixed | ({"imagePullSecrets": [{"name": name} for name in dict.fromkeys(secrets)]} if secrets else {})


def _volumes(observed: Observed, spec: SinkJobSpec, config: str) -> tuple[list[Object], list[Object]]:
    """The manifests, and every Secret and ConfigMap that one of them names; those of older ones may be gone."""
    volumes: list[Object] = [{"name": "sinkjob-tmp", "emptyDir": {}}]
    mounts: list[Object] = [{"name": "sinkjob-tmp", "mountPath": TEMPORARY}]

    def mount(name: str, folder: str, source: Object) -> None:
        volumes.append({"name": name, **source})
        mounts.append({"name": name, "mountPath": f"{MOUNTS}/{folder}", "readOnly": True})

    mount("sinkjob-job", "job", {"configMap": {"name": config}})
    needed, older = _referenced(observed, spec)
    for kind, (names, more) in {"secret": (needed[0], older[0]), "configMap": (needed[1], older[1])}.items():
        field = "secretName" if kind == "secret" else "name"
        for index, name in enumerate([*names, *more]):
            source = {field: name, "defaultMode": SECRET_MODE, "optional": name in more}
            mount(f"sinkjob-{kind.lower()}-{index}", f"{kind.lower()}s/{name}", {kind: source})
    return volumes, mounts


def _referenced(observed: Observed, spec: SinkJobSpec) -> tuple[tuple[list[str], ...], tuple[list[str], ...]]:
    """Secrets and ConfigMaps that this manifest names, and those that only the others name."""
    needed = mounted_objects(spec)
    more: tuple[set[str], set[str]] = (set(), set())
    for raw in others(observed, "").values():
        other = spec_of(observed, raw)
        for found, names in zip(more, mounted_objects(other) if other else (), strict=False):
            found.update(names)
    return needed, tuple(sorted(found - set(names)) for found, names in zip(more, needed, strict=True))
