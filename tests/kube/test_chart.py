"""The chart: what it renders, what a real API server says of it, whether its rights are enough and no more."""

import json
import re
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from sinkoperator.objects.access import access
from sinkoperator.observed import JobObject, Observed
from sinkoperator.rights import RIGHTS
from sinkoperator.settings import Settings, command
from sinkruntime.kube import NAMESPACE, SERVICE_ACCOUNT, Api, Kind, Object
from tests.kube.chart import CHART, ChartError, of_kind, render
from tests.kube.crd import CRD_FILE

EVERYTHING = {
    "networkPolicy": {"enabled": True, "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]},
    "imagePullSecrets": [{"name": "registry"}],
    "priorityClassName": "system-cluster-critical",
    "podAnnotations": {"example.org/a": "b"},
    "podLabels": {"example.org/a": "b"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "serviceAccount": {"annotations": {"example.org/role": "a"}},
    "egressAllow": ["*.example.org:443", "10.0.0.0/8"],
}
PLURALS = {
    "NetworkPolicy": "networkpolicies",
    "PodDisruptionBudget": "poddisruptionbudgets",
}
BAD_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"replica": 3}, "replica"),
    ({"replicas": 0}, "replicas"),
    ({"image": {"tag": "a b"}}, "tag"),
    ({"watchNamespaces": ["Data"]}, "watchNamespaces"),
    ({"lease": {"duration": "15"}}, "duration"),
    ({"workerMemory": "512Mi"}, "workerMemory"),
    ({"rbac": {"secrets": True}}, "secrets"),
    ({"serviceAccount": {"create": False}}, "serviceAccount.name is missing"),
]


def kind_of(body: Object) -> Kind:
    name = body["kind"]
    return Kind(body["apiVersion"], PLURALS.get(name, name.lower() + "s"), name)


def rules(objects: list[Object]) -> set[tuple[str, str, str]]:
    """(group, resource, verb) of all roles."""
    return {
        (group, resource, verb)
        for role in [*of_kind(objects, "Role"), *of_kind(objects, "ClusterRole")]
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_chart_has_the_crd_as_it_is_generated() -> None:
    assert (CHART / "files" / CRD_FILE.name).read_text() == CRD_FILE.read_text(), "run `make crds`"


def test_the_crd_is_kept_unless_told_otherwise() -> None:
    kept = of_kind(render("sinkjob"), "CustomResourceDefinition")
    assert [body["metadata"].pop("annotations") for body in kept] == [{"helm.sh/resource-policy": "keep"}]
    plain = of_kind(render("sinkjob", {"crds": {"keep": False}}), "CustomResourceDefinition")
    assert plain == kept == [yaml.safe_load(CRD_FILE.read_text())]
    assert of_kind(render("sinkjob", {"crds": {"install": False}}), "CustomResourceDefinition") == []


@pytest.mark.parametrize(("values", "said"), BAD_VALUES)
def test_a_wrong_value_is_refused_by_its_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ChartError, match=re.escape(said)):
        render("sinkjob", values)


def test_a_namespaced_release_has_no_right_of_the_clusters() -> None:
    objects = render("sinkjob", {"watchNamespaces": ["team-a", "team-b"]})
    assert of_kind(objects, "ClusterRole") == of_kind(objects, "ClusterRoleBinding") == []
    roles = [role["metadata"] for role in of_kind(objects, "Role")]
    assert {role["namespace"] for role in roles} == {"sinkjob", "team-a", "team-b"}
    (deployment,) = of_kind(objects, "Deployment")
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert [text for text in arguments if text.startswith("--namespace=")] == [
        "--namespace=team-a",
        "--namespace=team-b",
    ]


@pytest.mark.parametrize("values", [{}, {"watchNamespaces": ["team-a"]}])
def test_secrets_can_be_read_by_name_only_and_nothing_is_allowed_wholesale(values: dict[str, Any]) -> None:
    allowed = rules(render("sinkjob", values))
    assert {verb for _, resource, verb in allowed if resource == "secrets"} == {"get"}
    assert not [entry for entry in allowed if "*" in entry]
    assert not {"escalate", "bind", "impersonate"} & {verb for _, _, verb in allowed}


def test_tokens_of_service_accounts_can_be_switched_off() -> None:
    assert ("", "serviceaccounts/token", "create") in rules(render("sinkjob"))
    allowed = rules(render("sinkjob", {"rbac": {"serviceAccountTokens": False}}))
    assert not [entry for entry in allowed if entry[1] == "serviceaccounts/token"]


def test_the_options_are_those_that_the_operator_has() -> None:
    (deployment,) = of_kind(render("sinkjob", EVERYTHING | {"watchNamespaces": ["a"]}), "Deployment")
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    seen: list[Settings] = []

    def start(settings: Settings) -> int:
        seen.append(settings)
        return 0

    done = CliRunner().invoke(command(start), arguments, env={"HOSTNAME": "pod"})
    assert (done.exit_code, done.output) == (0, "")
    (settings,) = seen
    assert settings.egress_allow == ("*.example.org:443", "10.0.0.0/8")
    assert settings.operator_namespace == "sinkjob"
    assert settings.shutdown_seconds < deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]


def test_the_rights_are_those_that_the_operator_asks_for() -> None:
    asked = {(right.kind.group, f"{right.kind.plural}/{right.subresource}".rstrip("/"), right.verb) for right in RIGHTS}
    (role,) = of_kind(render("sinkjob"), "ClusterRole")
    # Without these the operator works, but for what `docs/install.md` says of each.
    optional = {("", "namespaces", "get"), ("", "serviceaccounts/token", "create")}
    assert rules([role]) - optional == asked


def test_every_right_stands_in_the_docs() -> None:
    table = (CHART.parents[1] / "docs" / "install.md").read_text()
    rows = {
        resource: {verb.strip() for verb in verbs.split(",")}
        for names, verbs in re.findall(r"^\| (`[^|]+`) \| ([a-z, ]+) \|", table, re.MULTILINE)
        for resource in re.findall(r"`([^`]+)`", names)
    }
    (role,) = of_kind(render("sinkjob"), "ClusterRole")
    held: dict[str, set[str]] = {}
    for _, resource, verb in rules([role]):
        held.setdefault(resource, set()).add(verb)
    assert rows == held


@pytest.mark.parametrize("run_on", ["Operator", "Job"])
@pytest.mark.parametrize("values", [{}, {"watchNamespaces": ["team-a"]}])
def test_the_operator_holds_every_right_that_it_gives_to_a_driver(values: dict[str, Any], run_on: str) -> None:
    job = JobObject("team-a", "j", "uid", 1, 0.0, {}, None)
    made = access(Observed(job, now=0.0, run_on={"s": run_on}))
    given = rules([body for _, body, _ in made])
    assert given
    assert given - rules(render("sinkjob", values)) == set()


@pytest.mark.parametrize("values", [{}, EVERYTHING, {"watchNamespaces": ["{namespace}"]}])
async def test_a_real_api_server_takes_every_object_of_the_chart(
    api: Api, namespace: str, values: dict[str, Any]
) -> None:
    restricted = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    await api.patch(NAMESPACE, "", namespace, restricted)
    objects = render(namespace, json.loads(json.dumps(values).replace("{namespace}", namespace)))
    # Pod Security only warns of a Deployment, and refuses its pods; these need a service account that is there.
    await api.create(SERVICE_ACCOUNT, namespace, {"metadata": {"name": "operator"}})
    (deployment,) = of_kind(objects, "Deployment")
    template = deployment["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], "name": "pod"}}
    pods = [{**pod, "spec": template["spec"]}, *of_kind(objects, "Pod")]
    for each in pods:
        each["spec"]["serviceAccountName"] = "operator"
    others = [body for body in objects if body["kind"] not in ("Pod", "CustomResourceDefinition")]
    assert len(others) >= 8
    for body in [*others, *pods]:
        place = "" if body["kind"].startswith("Cluster") else body["metadata"].get("namespace", namespace)
        made = await api.create(kind_of(body), place, body, dry_run=True)
        assert made["metadata"]["name"] == body["metadata"]["name"]
