"""What Spark is told on Kubernetes; nothing is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sinkruntime.spark import kubernetes
from sinkruntime.spark.kubernetes import PREFIX_LENGTH_MAX, DriverPod
from sinkruntime.spark.session import SessionSettings
from sinkruntime.spec.models import SinkJobSpec

POD = DriverPod(
    "data", "flights", 3, "flights-driver-3", "10.1.2.3", "sinkjob:1", Path("/etc/sinkjob"), "https://h:443"
)


def spec_of(**fields: Any) -> SinkJobSpec:
    base = {"source": {"format": "rate"}, "sinks": [{"name": "s", "type": "console"}]}
    return SinkJobSpec.model_validate(base | fields)


def conf_of(pod: DriverPod = POD, **fields: Any) -> dict[str, str]:
    spec = spec_of(**fields)
    settings = SessionSettings(
        "data/flights",
        spec,
        Path("/opt/app"),
        kubernetes.master(pod),
        {"fs.s3a.secret.key": "hush"},
        kubernetes.defaults(spec),
        kubernetes.fixed(spec, pod, Path("/tmp/pod.json")),
        ("/etc/sinkjob/configmaps/code",),
    )
    return settings.configuration()


def pod_of(**fields: Any) -> dict[str, Any]:
    return kubernetes.executor_pod(spec_of(**fields), POD)


def executor(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(entry for entry in pod["spec"]["containers"] if entry["name"] == "executor")
    return found


def test_executors_are_owned_by_this_pod_and_find_it_by_its_address() -> None:
    conf = conf_of()
    assert kubernetes.master(POD) == "k8s://https://h:443"
    assert conf["spark.kubernetes.driver.pod.name"] == "flights-driver-3"
    assert (conf["spark.driver.host"], conf["spark.driver.port"]) == ("10.1.2.3", "7078")
    assert conf["spark.executorEnv.PYTHONPATH"] == "/opt/app:/etc/sinkjob/configmaps/code"
    assert "hush" not in str(conf)


def test_an_address_of_version_6_is_bracketed_as_a_host_only() -> None:
    conf = conf_of(DriverPod("n", "j", 1, "p", "fd00::7", "i", Path("/m"), "https://h"))
    assert (conf["spark.driver.host"], conf["spark.driver.bindAddress"]) == ("[fd00::7]", "fd00::7")


def test_sizes_come_from_the_manifest_and_a_job_may_ask_for_less_cpu() -> None:
    conf = conf_of(
        executor={"instances": 3, "cores": 2, "memory": "2g", "memoryOverhead": "1g"},
        driver={"memory": "3g"},
        sparkConf={"spark.kubernetes.executor.request.cores": "250m", "spark.executor.memory": "9g"},
    )
    assert [conf[f"spark.executor.{key}"] for key in ("instances", "cores", "memory", "memoryOverhead")] == [
        "3", "2", "2g", "1g",
    ]  # fmt: skip
    assert conf["spark.driver.memory"] == "3g"
    assert conf["spark.kubernetes.executor.request.cores"] == "250m"


def test_a_driver_is_not_ended_by_spark_for_executors_that_it_has_lost_over_the_years() -> None:
    assert conf_of()["spark.executor.maxNumFailures"] == str(2**31 - 1)
    assert conf_of(sparkConf={"spark.executor.maxNumFailures": "5"})["spark.executor.maxNumFailures"] == "5"


def test_dynamic_allocation_begins_within_its_bounds() -> None:
    scaling = {"enabled": True, "minExecutors": 1, "maxExecutors": 4}
    conf = conf_of(dynamicAllocation=scaling, executor={"instances": 9})
    assert conf["spark.dynamicAllocation.enabled"] == "true"
    assert conf["spark.executor.instances"] == conf["spark.dynamicAllocation.initialExecutors"] == "4"
    assert conf_of()["spark.dynamicAllocation.enabled"] == "false"


def test_account_and_pull_secrets_are_the_drivers_own() -> None:
    pod = DriverPod("n", "j", 1, "p", "10.0.0.1", "i", Path("/m"), "https://h", "robot", ("a", "b"))
    conf = conf_of(pod)
    assert conf["spark.kubernetes.authenticate.executor.serviceAccountName"] == "robot"
    assert conf["spark.kubernetes.container.image.pullSecrets"] == "a,b"


@pytest.mark.parametrize("job", ["flights", "x" * 63, "x" * 40 + "-----" + "y" * 18])
def test_names_of_executors_stay_host_names(job: str) -> None:
    prefix = conf_of(DriverPod("n", job, 1234, "p", "10.0.0.1", "i", Path("/m"), "https://h"))[
        "spark.kubernetes.executor.podNamePrefix"
    ]
    assert len(prefix) <= PREFIX_LENGTH_MAX
    assert prefix.startswith(job[:20])
    assert prefix.endswith("-1234")


def test_an_executor_passes_restricted_pod_security_and_has_no_token() -> None:
    pod = pod_of()
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert executor(pod)["securityContext"] == {
        "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True,
    }  # fmt: skip
    assert executor(pod)["volumeMounts"] == [{"name": "sinkjob-tmp", "mountPath": "/tmp"}]
    assert pod["metadata"]["labels"]["sinkjob.io/epoch"] == "3"


def test_a_template_adds_and_replaces_but_not_the_labels() -> None:
    template: dict[str, Any] = {
        "metadata": {"labels": {"team": "a", "sinkjob.io/job": "another"}, "annotations": {"x": "y"}},
        "spec": {
            "nodeSelector": {"disk": "fast"},
            "securityContext": {"runAsUser": 1000},
            "containers": [
                {"name": "sidecar"},
                {"name": "executor", "env": [{"name": "A", "value": "b"}], "volumeMounts": [{"mountPath": "/tmp"}]},
            ],
        },
    }
    pod = pod_of(executor={"podTemplate": template})
    assert pod["metadata"]["labels"]["sinkjob.io/job"] == "flights"
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["metadata"]["annotations"] == {"x": "y"}
    assert pod["spec"]["nodeSelector"] == {"disk": "fast"}
    assert pod["spec"]["securityContext"]["runAsUser"] == 1000
    assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert [entry["name"] for entry in pod["spec"]["containers"]] == ["sidecar", "executor"]
    assert executor(pod)["env"] == [{"name": "A", "value": "b"}]
    assert executor(pod)["volumeMounts"] == [{"mountPath": "/tmp"}], "it has its own place for temporary files"
    assert template["metadata"]["labels"] == {"team": "a", "sinkjob.io/job": "another"}, "it is not changed"


def test_secrets_and_config_maps_are_mounted_where_the_driver_has_them() -> None:
    fields = {
        "deps": {"configMaps": ["code"]},
        "source": {"format": "rate", "optionsFrom": [{"secretRef": {"name": "in"}}]},
        "checkpoint": {"location": "s3a://b/c", "optionsFrom": [{"secretRef": {"name": "in"}}]},
        "sinks": [{"name": "s", "type": "console", "optionsFrom": [{"configMapRef": {"name": "out"}}]}],
    }
    assert kubernetes.mounted_objects(spec_of(**fields)) == (["in"], ["code", "out"])
    pod = pod_of(**fields)
    places = {mount["mountPath"]: mount["name"] for mount in executor(pod)["volumeMounts"]}
    assert set(places) == {
        "/tmp", "/etc/sinkjob/secrets/in", "/etc/sinkjob/configmaps/code", "/etc/sinkjob/configmaps/out",
    }  # fmt: skip
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes[places["/etc/sinkjob/secrets/in"]]["secret"] == {"secretName": "in", "defaultMode": 0o440}


def test_the_template_is_written_as_json(tmp_path: Path) -> None:
    pod = pod_of()
    assert json.loads(kubernetes.write_template(pod, tmp_path).read_text()) == pod


def test_the_pod_of_a_dry_run_asks_for_what_spark_asks_for() -> None:
    spec = spec_of(executor={"memory": "1g", "memoryOverhead": "768m", "cores": 2})
    probe = kubernetes.like_an_executor(POD, spec, kubernetes.executor_pod(spec, POD))
    assert probe["metadata"]["generateName"] == "flights-3-probe-"
    assert executor(probe)["image"] == "sinkjob:1"
    assert executor(probe)["resources"] == {
        "requests": {"cpu": "2", "memory": "1792Mi"}, "limits": {"memory": "1792Mi"},
    }  # fmt: skip
