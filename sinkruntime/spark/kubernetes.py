"""What Spark is told on Kubernetes: its settings in client mode, and the pod that it makes executors from.

The driver pod calls it before it opens the session. Starts nothing, asks nobody, and knows no secret: Secrets are named
here, and the kubelet mounts them. The executor's pod passes Pod Security `restricted` as it is; a manifest's
`executor.podTemplate` adds to it, and may replace all but the labels, the image and the mounts.
"""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkruntime.kube.names import GROUP, labels
from sinkruntime.spec.models import SinkJobSpec
from sinkruntime.spec.source import OptionsFrom

#: The user and group of the images (Apache Spark's own images have the same).
USER_ID = 185
#: Read by the group only: `fsGroup` makes them the process's own.
SECRET_MODE = 0o440
EXECUTOR = CONTAINER = "executor"
EPOCH_LABEL = f"{GROUP}/epoch"
#: The only folder that can be written to.
TEMPORARY = "/tmp"
#: Fixed, so that a NetworkPolicy can name them.
DRIVER_PORT, BLOCK_MANAGER_PORT = 7078, 7079
API_MILLISECONDS = "30000"
#: A host name's 63 characters less what Spark adds: `-exec-` and a number.
PREFIX_LENGTH_MAX = 47
PREFIX_DIGEST_LENGTH = 8

Pod = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DriverPod:
    """The pod that this process is in, and the folder below which its Secrets and ConfigMaps are mounted."""

    namespace: str
    job: str
    epoch: int
    name: str
    address: str
    image: str
    mounts: Path
    api_server: str
    service_account: str = ""  # the driver's own, which executors have too, without its token
    pull_secrets: tuple[str, ...] = ()

    @property
    def labels(self) -> dict[str, str]:
        """Of its executors: by these they are found, counted and told from those of other epochs."""
        return {**labels(self.job, EXECUTOR), EPOCH_LABEL: str(self.epoch)}


def mounted_objects(spec: SinkJobSpec) -> tuple[list[str], list[str]]:
    """The names of the Secrets and of the ConfigMaps that a job's pods have mounted."""
    entries: list[OptionsFrom] = [*spec.source.options_from, *spec.checkpoint.options_from]
    for sink in spec.sinks:
        entries += sink.options_from
    secrets = {entry.secret_ref.name for entry in entries if entry.secret_ref is not None}
    config_maps = {entry.config_map_ref.name for entry in entries if entry.config_map_ref is not None}
    return sorted(secrets), sorted(config_maps | set(spec.deps.config_maps))


def defaults(spec: SinkJobSpec) -> dict[str, str]:
    """Settings that a job's `sparkConf` may change."""
    return {
        "spark.ui.enabled": "false",  # it asks nobody who they are
        # The session opens at once, and what the start check finds wrong is told before any executor is there.
        "spark.scheduler.minRegisteredResourcesRatio": "0",
        # Spark ends a driver that has lost some executors, however long ago. Ours watches that it has any.
        "spark.executor.maxNumFailures": str(2**31 - 1),
        "spark.executor.instances": str(spec.executor.instances),
        # Spark's own 10 s end the start of a driver on a node that is busy.
        "spark.kubernetes.driver.connectionTimeout": API_MILLISECONDS,
        "spark.kubernetes.driver.requestTimeout": API_MILLISECONDS,
    }


def fixed(spec: SinkJobSpec, pod: DriverPod, template: Path) -> dict[str, str]:
    """Settings that hold whatever a job says; `template` is the file with the executor's pod."""
    executor, scaling = spec.executor, spec.dynamic_allocation
    conf = {
        "spark.submit.deployMode": "client",
        "spark.driver.host": f"[{pod.address}]" if ":" in pod.address else pod.address,
        "spark.driver.bindAddress": pod.address,
        "spark.driver.port": str(DRIVER_PORT),
        "spark.driver.blockManager.port": str(BLOCK_MANAGER_PORT),
        "spark.driver.memory": str(spec.driver.memory),
        "spark.executor.cores": str(executor.cores),
        "spark.executor.memory": str(executor.memory),
        "spark.executor.memoryOverhead": str(executor.memory_overhead),
        "spark.kubernetes.namespace": pod.namespace,
        "spark.kubernetes.driver.pod.name": pod.name,  # makes it the owner of the executors
        "spark.kubernetes.container.image": pod.image,
        "spark.kubernetes.container.image.pullPolicy": spec.image_pull_policy,
        "spark.kubernetes.executor.podNamePrefix": _prefix(pod.job, pod.epoch),
        "spark.kubernetes.executor.podTemplateFile": str(template),
        "spark.kubernetes.executor.podTemplateContainerName": CONTAINER,
        # Each of these would need rights on objects that are none of its business.
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
        "spark.dynamicAllocation.enabled": str(scaling.enabled).lower(),
    }
    if pod.pull_secrets:
        conf["spark.kubernetes.container.image.pullSecrets"] = ",".join(pod.pull_secrets)
    if pod.service_account:
        conf["spark.kubernetes.authenticate.executor.serviceAccountName"] = pod.service_account
    if scaling.enabled:
        first = min(max(executor.instances, scaling.min_executors), scaling.max_executors)
        conf["spark.executor.instances"] = str(first)
        conf["spark.dynamicAllocation.shuffleTracking.enabled"] = "true"
        conf["spark.dynamicAllocation.minExecutors"] = str(scaling.min_executors)
        conf["spark.dynamicAllocation.maxExecutors"] = str(scaling.max_executors)
        conf["spark.dynamicAllocation.initialExecutors"] = str(first)
    return conf


def _prefix(job: str, epoch: int) -> str:
    """What the executors' names begin with: the job and the epoch, where that is too long with a digest of the job."""
    whole = f"{job}-{epoch}"
    if len(whole) <= PREFIX_LENGTH_MAX:
        return whole
    tail = f"-{hashlib.sha256(job.encode()).hexdigest()[:PREFIX_DIGEST_LENGTH]}-{epoch}"
    return job[: PREFIX_LENGTH_MAX - len(tail)].rstrip("-") + tail


def executor_pod(spec: SinkJobSpec, pod: DriverPod) -> Pod:
    """The executor's pod: the manifest's `executor.podTemplate`, and beneath it what `restricted` asks for."""
    made: Pod = copy.deepcopy(spec.executor.pod_template)
    metadata = made.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), **pod.labels}
    inner = made.setdefault("spec", {})
    inner.setdefault("automountServiceAccountToken", False)
    inner.setdefault("enableServiceLinks", False)
    inner["securityContext"] = {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
        **(inner.get("securityContext") or {}),
    }
    container = _container(inner)
    container["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        **(container.get("securityContext") or {}),
    }
    container.setdefault("workingDir", TEMPORARY)  # Spark unpacks `deps.pyFiles` there
    volumes, mounts = _volumes(spec, pod.mounts)
    own = container.get("volumeMounts") or []
    if all(mount.get("mountPath") != TEMPORARY for mount in own):
        volumes.append({"name": "sinkjob-tmp", "emptyDir": {}})
        mounts.append({"name": "sinkjob-tmp", "mountPath": TEMPORARY})
    inner["volumes"] = [*(inner.get("volumes") or []), *volumes]
    container["volumeMounts"] = [*own, *mounts]
    return made


def _container(inner: Pod) -> Pod:
    containers: list[Pod] = inner.setdefault("containers", [])
    for container in containers:
        if container.get("name") == CONTAINER:
            return container
    containers.insert(0, {"name": CONTAINER})
    return containers[0]


def _volumes(spec: SinkJobSpec, folder: Path) -> tuple[list[Pod], list[Pod]]:
    """The job's Secrets and ConfigMaps, where the driver has them too."""
    volumes: list[Pod] = []
    mounts: list[Pod] = []
    secrets, config_maps = mounted_objects(spec)

    def mount(name: str, path: Path, source: Pod) -> None:
        volumes.append({"name": name, **source})
        mounts.append({"name": name, "mountPath": str(path), "readOnly": True})

    for index, secret in enumerate(secrets):
        source = {"secret": {"secretName": secret, "defaultMode": SECRET_MODE}}
        mount(f"sinkjob-secret-{index}", folder / "secrets" / secret, source)
    for index, config_map in enumerate(config_maps):
        source = {"configMap": {"name": config_map, "defaultMode": SECRET_MODE}}
        mount(f"sinkjob-configmap-{index}", folder / "configmaps" / config_map, source)
    return volumes, mounts


def write_template(pod: Pod, folder: Path) -> Path:
    """The pod in a file, as Spark reads it."""
    path = folder / "executor-pod.json"
    path.write_text(json.dumps(pod))
    return path


def master(pod: DriverPod) -> str:
    """Spark's master."""
    return f"k8s://{pod.api_server}"


def like_an_executor(pod: DriverPod, spec: SinkJobSpec, template: Pod) -> Pod:
    """A pod such as Spark would ask for, for a dry run that shows why it is refused."""
    made = copy.deepcopy(template)
    made["metadata"]["generateName"] = f"{_prefix(pod.job, pod.epoch)}-probe-"
    inner = made["spec"]
    inner["restartPolicy"] = "Never"
    if pod.service_account:
        inner["serviceAccountName"] = pod.service_account
    memory_bytes = spec.executor.memory.bytes + spec.executor.memory_overhead.bytes
    amounts = {"cpu": spec.spark_conf.get("spark.kubernetes.executor.request.cores", str(spec.executor.cores))}
    amounts["memory"] = f"{-(-memory_bytes // 2**20)}Mi"
    container = _container(inner)
    container |= {"image": pod.image, "args": ["executor"]}
    container["resources"] = {"requests": amounts, "limits": {"memory": amounts["memory"]}}
    return made
