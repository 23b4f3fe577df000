"""The objects of a job: what the driver's pod may, mounts and is told; podTemplate; rights; revisions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sinkoperator import names, objects
from sinkoperator.actions import CreateDriver, EnsureCommitter
from sinkoperator.objects.merge import merged
from sinkoperator.observed import Observed, PlanSettings
from sinkoperator.plan import plan
from sinkruntime.kube.kinds import ROLE, ROLE_BINDING
from sinkruntime.spec.digest import revision as revision_of
from tests.unit.operator.plan_world import (
    NAME,
    UID,
    intent,
    job,
    kinds,
    ledger,
    observed,
    raw_of,
    record,
    revision,
    spec_of,
)

REFERENCES: dict[str, Any] = {
    "source": {"format": "rate", "optionsFrom": [{"secretRef": {"name": "source-secret"}}]},
    "deps": {"configMaps": ["code"]},
    "sinks": [
        {
            "name": "lake",
            "type": "file",
            "options": {"path": "s3a://bucket/out"},
            "optionsFrom": [{"secretRef": {"name": "lake-keys"}}, {"configMapRef": {"name": "lake-options"}}],
        }
    ],
}


def made(epoch: int = 3, *, commit_only: bool = False, seen: Observed | None = None, **changes: Any) -> tuple[Any, Any]:
    """ConfigMap and Pod of a driver of this manifest."""
    seen = seen or observed(ledger(3), raw=raw_of(**changes))
    assert seen.job.spec is not None
    return objects.driver(seen, CreateDriver(epoch, revision_of(seen.job.spec), commit_only))


def container(pod: Any, name: str = "driver") -> Any:
    """A container of a pod."""
    return next(each for each in pod["spec"]["containers"] if each["name"] == name)


def environment(pod: Any, name: str = "driver") -> dict[str, Any]:
    """The variables of a container."""
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container(pod, name)["env"]}


def mounts(pod: Any, name: str = "driver") -> dict[str, str]:
    """Which volume is mounted where."""
    return {each["mountPath"]: each["name"] for each in container(pod, name)["volumeMounts"]}


def test_the_driver_is_named_and_labelled_by_job_and_epoch_and_owned_by_the_sinkjob() -> None:
    config, pod = made()
    for body in (config, pod):
        about = body["metadata"]
        assert (about["name"], about["namespace"]) == ("flights-driver-3", "data")
        assert about["labels"] == {
            "app.kubernetes.io/name": "sinkjob",
            "app.kubernetes.io/instance": NAME,
            "app.kubernetes.io/component": "driver",
            "app.kubernetes.io/managed-by": "sinkjob",
            "app.kubernetes.io/part-of": "sinkjob",
            "sinkjob.io/job": NAME,
            "sinkjob.io/epoch": "3",
            "sinkjob.io/revision": revision_of(spec_of()),
        }
        assert about["ownerReferences"] == [
            {"apiVersion": "sinkjob.io/v1alpha1", "kind": "SinkJob", "name": NAME, "uid": UID, "controller": True}
        ]
    assert pod["metadata"]["annotations"][names.INTENT_ANNOTATION] == intent()


def test_the_driver_passes_restricted_pod_security() -> None:
    _, pod = made()
    inner = pod["spec"]
    assert inner["securityContext"]["runAsNonRoot"] is True
    assert inner["securityContext"]["runAsUser"] == 185
    assert inner["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(pod)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert inner["restartPolicy"] == "Never"
    assert inner["enableServiceLinks"] is False
    assert mounts(pod)["/tmp"] == "sinkjob-tmp"


@pytest.mark.parametrize(("commit_only", "more"), [(False, []), (True, ["--commit-only"])])
def test_the_driver_is_told_who_it_is_by_its_environment(commit_only: bool, more: list[str]) -> None:
    _, pod = made(commit_only=commit_only)
    assert container(pod)["command"] == ["sinkjob", "driver", *more]
    told = environment(pod)
    assert told["SINKJOB_NAMESPACE"] == "data"
    assert told["SINKJOB_JOB"] == NAME
    assert told["SINKJOB_EPOCH"] == "3"
    assert told["SINKJOB_IMAGE"] == "sinkjob-driver"
    assert told["SINKJOB_GRACE_SECONDS"] == "60"
    assert told["SINKJOB_POD_NAME"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert told["SINKJOB_POD_UID"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert told["SINKJOB_POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert pod["metadata"]["annotations"][names.COMMIT_ONLY_ANNOTATION] == str(commit_only).lower()


def test_the_manifest_and_everything_that_it_names_is_mounted() -> None:
    config, pod = made(**REFERENCES)
    manifest = json.loads(config["data"]["job.json"])
    assert manifest["spec"] == raw_of(**REFERENCES)
    assert manifest["metadata"] == {"name": NAME, "namespace": "data", "uid": UID, "generation": 1}
    assert config["immutable"] is True
    places = mounts(pod)
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    assert volumes[places["/etc/sinkjob/job"]]["configMap"] == {"name": "flights-driver-3"}
    for secret in ("source-secret", "lake-keys"):
        source = volumes[places[f"/etc/sinkjob/secrets/{secret}"]]["secret"]
        assert source == {"secretName": secret, "defaultMode": 0o440, "optional": False}
    for name in ("code", "lake-options"):
        assert volumes[places[f"/etc/sinkjob/configmaps/{name}"]]["configMap"]["name"] == name


def test_manifests_of_pending_revisions_lie_beside_the_jobs_own() -> None:
    older = raw_of(sinks=[{"name": "old", "type": "file", "optionsFrom": [{"secretRef": {"name": "old-keys"}}]}])
    kept = replace(revision(), name="older", raw={**older, "suspend": True, "restartNonce": 7})
    seen = replace(observed(ledger(3, record(1, 2, revision="older"))), revisions=(revision(), kept))
    config, pod = made(seen=seen)
    assert set(config["data"]) == {"job.json", "older.json"}
    other = json.loads(config["data"]["older.json"])["spec"]
    assert other["sinks"] == older["sinks"]
    assert "suspend" not in other, "what a person says now counts for every revision"
    assert "restartNonce" not in other
    volume = next(each for each in pod["spec"]["volumes"] if each.get("secret", {}).get("secretName") == "old-keys")
    assert volume["secret"]["optional"] is True, "the Secret of a former manifest may be gone"


def test_a_driver_that_only_commits_gets_the_revision_that_is_asked_for() -> None:
    kept = replace(revision(), name="older", raw=raw_of(image="former:1", suspend=False))
    seen = replace(observed(ledger(3), raw=raw_of(suspend=True, image="new:2")), revisions=(kept,))
    config, pod = objects.driver(seen, CreateDriver(4, "older", commit_only=True))
    spec = json.loads(config["data"]["job.json"])["spec"]
    assert (spec["image"], spec["suspend"]) == ("former:1", True)
    assert container(pod)["image"] == "former:1"
    assert pod["metadata"]["labels"][names.REVISION_LABEL] == "older"


def test_resources_are_cores_and_heap_with_overhead() -> None:
    _, pod = made(driver={"cores": 2, "memory": "1g", "memoryOverhead": "512m"})
    assert container(pod)["resources"] == {
        "requests": {"cpu": "2", "memory": "1536Mi"},
        "limits": {"memory": "1536Mi"},
    }


def test_image_and_pull_secrets_are_the_manifests_else_the_operators() -> None:
    settings = PlanSettings(driver_image="default:1", image_pull_secrets=("all",))
    seen = replace(
        observed(ledger(3), raw=raw_of(image="own:1", imagePullPolicy="Always", imagePullSecrets=[{"name": "own"}])),
        settings=settings,
    )
    _, pod = made(seen=seen)
    assert (container(pod)["image"], container(pod)["imagePullPolicy"]) == ("own:1", "Always")
    assert environment(pod)["SINKJOB_IMAGE"] == "own:1"
    assert pod["spec"]["imagePullSecrets"] == [{"name": "own"}, {"name": "all"}]


TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"team": "data", "sinkjob.io/epoch": "99"}, "annotations": {"note": "x"}, "name": "mine"},
    "spec": {
        "nodeSelector": {"disk": "ssd"},
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 300,
        "securityContext": {"runAsUser": 1000},
        "containers": [
            {
                "name": "driver",
                "command": ["sh"],
                "env": [{"name": "A", "value": "1"}, {"name": "SINKJOB_EPOCH", "value": "99"}],
                "resources": {"limits": {"cpu": "4"}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            },
            {"name": "sidecar", "image": "proxy"},
        ],
        "volumes": [{"name": "data", "emptyDir": {}}],
    },
}


def test_the_pod_template_is_merged_by_name_and_cannot_take_what_the_operator_relies_on() -> None:
    _, pod = made(driver={"podTemplate": TEMPLATE})
    about, inner = pod["metadata"], pod["spec"]
    assert about["name"] == "flights-driver-3"
    assert about["labels"]["team"] == "data"
    assert about["labels"]["sinkjob.io/epoch"] == "3"
    assert about["annotations"]["note"] == "x"
    assert inner["nodeSelector"] == {"disk": "ssd"}
    assert inner["restartPolicy"] == "Never"
    assert inner["terminationGracePeriodSeconds"] == 300
    assert environment(pod)["SINKJOB_GRACE_SECONDS"] == "300"
    assert inner["securityContext"]["runAsUser"] == 1000
    assert inner["securityContext"]["runAsNonRoot"] is True
    assert [each["name"] for each in inner["containers"]] == ["driver", "sidecar"]
    assert container(pod)["command"] == ["sinkjob", "driver"]
    assert environment(pod)["A"] == "1"
    assert environment(pod)["SINKJOB_EPOCH"] == "3"
    assert container(pod)["resources"]["limits"] == {"memory": "1536Mi", "cpu": "4"}
    assert mounts(pod)["/data"] == "data"
    assert "data" in [each["name"] for each in inner["volumes"]]


@pytest.mark.parametrize("broken", [{"spec": []}, {"spec": {"containers": "x"}}, {"metadata": 7}, {"spec": None}])
def test_a_pod_template_of_a_wrong_shape_does_not_break_the_builder(broken: Any) -> None:
    _, pod = made(driver={"podTemplate": broken})
    assert container(pod)["command"] == ["sinkjob", "driver"]


@pytest.mark.parametrize(
    ("below", "above", "field", "after"),
    [
        ({"a": 1, "b": {"c": 1}}, {"b": {"d": 2}}, "", {"a": 1, "b": {"c": 1, "d": 2}}),
        ([{"name": "x", "v": 1}], [{"name": "x", "w": 2}], "env", [{"name": "x", "v": 1, "w": 2}]),
        ([{"name": "y"}], [{"name": "x"}], "volumes", [{"name": "x"}, {"name": "y"}]),
        ([1, 2], [3], "tolerations", [3]),
        ([{"v": 1}], [{"name": "x"}], "env", [{"name": "x"}]),
        (1, {"a": 1}, "", {"a": 1}),
    ],
)
def test_merging(below: Any, above: Any, field: str, after: Any) -> None:
    assert merged(below, above, field) == after


def test_rights_cover_the_own_ledger_by_name_executors_and_no_secret() -> None:
    found = {kind.name: body for kind, body, _ in objects.access(observed(ledger(3)))}
    assert set(found) == {"ServiceAccount", "Role", "RoleBinding"}
    rules = found["Role"]["rules"]
    assert all(rule["resources"] in (["pods"], ["configmaps"]) for rule in rules)
    named = next(rule for rule in rules if "resourceNames" in rule)
    assert named["resourceNames"] == ["flights-ledger"]
    unnamed = next(rule for rule in rules if rule["resources"] == ["configmaps"] and "resourceNames" not in rule)
    assert unnamed["verbs"] == ["create", "get"]
    assert found["RoleBinding"]["subjects"] == [
        {"kind": "ServiceAccount", "name": "flights-driver", "namespace": "data"}
    ]
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    _, pod = made()
    assert pod["spec"]["serviceAccountName"] == "flights-driver"


def test_a_named_service_account_gets_the_rights_and_none_is_made() -> None:
    seen = observed(ledger(3), raw=raw_of(serviceAccountName="team"))
    assert [kind for kind, _, _ in objects.access(seen)] == [ROLE, ROLE_BINDING]
    assert objects.access(seen)[-1][1]["subjects"][0]["name"] == "team"
    _, pod = made(seen=seen)
    assert pod["spec"]["serviceAccountName"] == "team"
    default = replace(observed(ledger(3)), settings=PlanSettings(driver_image="i", service_account="shared"))
    assert objects.access(default)[-1][1]["subjects"][0]["name"] == "shared"


def test_the_revision_keeps_the_manifest_with_the_next_number() -> None:
    seen = replace(observed(ledger(3)), revisions=(replace(revision(), name="older", number=4),))
    body = objects.revision(seen, revision_of(spec_of()))
    assert body["revision"] == 5
    assert body["data"]["spec"] == raw_of()
    assert body["metadata"]["name"] == f"flights-{revision_of(spec_of())}"
    assert body["metadata"]["annotations"][names.SINKS_ANNOTATION] == revision().sinks


def test_the_committer_has_the_drivers_template_without_its_sidecars_and_more_rights_on_payloads() -> None:
    seen = replace(observed(ledger(3), raw=raw_of(driver={"podTemplate": TEMPLATE})), run_on={"lake": "Job"})
    assert seen.job.spec is not None
    config, pod = objects.committer(seen, EnsureCommitter(2, revision_of(seen.job.spec)))
    assert config["metadata"]["name"] == pod["metadata"]["name"] == "flights-committer-2"
    assert [each["name"] for each in pod["spec"]["containers"]] == ["committer"]
    assert container(pod, "committer")["command"] == ["sinkjob", "commit"]
    assert environment(pod, "committer")["A"] == "1"
    assert container(pod, "committer")["resources"]["limits"] == {"memory": "512Mi"}
    role = objects.access(seen)[1][1]
    assert ["create", "delete", "get", "list"] in [rule["verbs"] for rule in role["rules"]]


def test_a_committer_pod_for_the_checkpoints_of_a_former_manifest_has_the_rights_that_it_needs() -> None:
    """Without `list` and `delete` its recovery would fail for ever, and every driver would wait for that."""
    kept = revision(sinks=[{**raw_of()["sinks"][0], "commit": {"runOn": "Job"}}])
    seen = replace(
        observed(ledger(3, record(1, 3, revision=kept.name))), revisions=(kept,), run_on={"lake": "Operator"}
    )
    assert "EnsureCommitter" in kinds(plan(seen))
    role = objects.access(seen)[1][1]
    assert ["create", "delete", "get", "list"] in [rule["verbs"] for rule in role["rules"]]


@pytest.mark.parametrize("suffix", ["driver-1000000", "committer-7"])
def test_long_names_are_cut_and_differ(suffix: str) -> None:
    first, second = (f"{'a' * 60}{end}" for end in ("bcd", "xyz"))
    number = int(suffix.rpartition("-")[2])
    make = names.driver_name if suffix.startswith("driver") else names.committer_name
    assert len(make(first, number)) <= 63
    assert make(first, number).endswith(suffix)
    assert make(first, number) != make(second, number)


def test_an_invalid_present_manifest_does_not_keep_older_revisions_from_being_committed() -> None:
    kept = revision()
    seen = replace(observed(ledger(3), raw=raw_of(sinks=[])), revisions=(kept,))
    seen = replace(seen, job=replace(job(raw_of(sinks=[])), generation=9))
    config, pod = objects.driver(seen, CreateDriver(4, kept.name, commit_only=True))
    assert json.loads(config["data"]["job.json"])["spec"]["sinks"] == raw_of()["sinks"]
    assert pod["metadata"]["annotations"][names.INTENT_ANNOTATION] == "generation-9"
