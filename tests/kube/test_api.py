"""The verbs of `Api` against a real API server, and what each of its refusals is called."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sinkruntime.errors import ConfigurationError
from sinkruntime.kube import (
    CONFIG_MAP,
    LEASE,
    NAMESPACE,
    POD,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE_ACCOUNT,
    AlreadyExists,
    Api,
    ApiSettings,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    Kind,
    NotFound,
    Object,
    Unavailable,
)
from sinkruntime.kube.transport import Request
from tests.kube.control_plane import ControlPlane


def config_map(name: str = "a", **data: str) -> Object:
    return {"metadata": {"name": name}, "data": data}


async def test_what_is_created_is_read_listed_and_deleted(api: Api, namespace: str) -> None:
    labelled = {"metadata": {"name": "a", "labels": {"x": "1"}}, "data": {"k": "v"}}
    made = await api.create(CONFIG_MAP, namespace, labelled)
    assert (made["kind"], made["data"]) == ("ConfigMap", {"k": "v"})
    assert await api.get(CONFIG_MAP, namespace, "a") == made
    listed, version = await api.list(CONFIG_MAP, namespace, labels="x=1")
    made["metadata"].pop("managedFields")
    assert listed == [made]
    assert int(version) >= int(made["metadata"]["resourceVersion"])
    assert (await api.list(CONFIG_MAP, namespace, name="a"))[0] == [made]
    assert await api.delete(CONFIG_MAP, namespace, "a")
    assert not await api.delete(CONFIG_MAP, namespace, "a")
    assert await api.get(CONFIG_MAP, namespace, "a") is None


async def test_a_list_is_read_in_pages(kubeconfig: Path, api: Api, namespace: str) -> None:
    for index in range(5):
        await api.create(CONFIG_MAP, namespace, {"metadata": {"name": f"a{index}", "labels": {"x": "1"}}})
    async with await Api.connect(ApiSettings(kubeconfig=str(kubeconfig), page_objects=2)) as paging:
        found, _ = await paging.list(CONFIG_MAP, namespace, labels="x=1")
        assert [one["metadata"]["name"] for one in found] == [f"a{index}" for index in range(5)]
        assert paging.requests["list", "ConfigMap", "200"] == 3


async def test_a_write_that_names_an_old_version_loses_and_changes_nothing(api: Api, namespace: str) -> None:
    first = await api.create(CONFIG_MAP, namespace, config_map(k="1"))
    old = first["metadata"]["resourceVersion"]
    second = await api.patch(CONFIG_MAP, namespace, "a", {"metadata": {"resourceVersion": old}, "data": {"k": "2"}})
    with pytest.raises(Conflict) as caught:
        await api.patch(CONFIG_MAP, namespace, "a", {"metadata": {"resourceVersion": old}, "data": {"k": "3"}})
    assert caught.value.code == 409
    with pytest.raises(Conflict):
        await api.replace(CONFIG_MAP, namespace, first)
    assert await api.get(CONFIG_MAP, namespace, "a") == second
    second["data"] = {"k": "4"}
    assert (await api.replace(CONFIG_MAP, namespace, second))["data"] == {"k": "4"}


async def test_of_concurrent_patches_from_one_version_one_wins(api: Api, namespace: str) -> None:
    first = await api.create(CONFIG_MAP, namespace, config_map(k=""))
    body = {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}}
    tries = [api.patch(CONFIG_MAP, namespace, "a", {**body, "data": {"k": str(index)}}) for index in range(8)]
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(result, dict) for result in results) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 7


async def test_a_patch_keeps_what_it_does_not_name_and_none_removes(api: Api, namespace: str) -> None:
    await api.create(CONFIG_MAP, namespace, config_map(keep="1", drop="2"))
    await api.patch(CONFIG_MAP, namespace, "a", {"metadata": {"labels": {"x": "y"}}})
    patched = await api.patch(CONFIG_MAP, namespace, "a", {"data": {"drop": None}})
    assert (patched["data"], patched["metadata"]["labels"]) == ({"keep": "1"}, {"x": "y"})


async def test_deleting_by_uid_spares_another_object_of_that_name(api: Api, namespace: str) -> None:
    first = await api.create(CONFIG_MAP, namespace, config_map())
    await api.delete(CONFIG_MAP, namespace, "a")
    second = await api.create(CONFIG_MAP, namespace, config_map())
    assert not await api.delete(CONFIG_MAP, namespace, "a", uid=first["metadata"]["uid"])
    assert await api.get(CONFIG_MAP, namespace, "a") == second
    assert await api.delete(CONFIG_MAP, namespace, "a", uid=second["metadata"]["uid"])


async def test_what_a_finalizer_keeps_is_there_until_it_is_taken_off(api: Api, namespace: str) -> None:
    body: Object = {"metadata": {"name": "a", "finalizers": ["sinkjob.io/ledger"]}}
    await api.create(CONFIG_MAP, namespace, body)
    assert await api.delete(CONFIG_MAP, namespace, "a")
    kept = await api.get(CONFIG_MAP, namespace, "a")
    assert kept is not None
    assert kept["metadata"]["deletionTimestamp"]
    await api.patch(CONFIG_MAP, namespace, "a", {"metadata": {"finalizers": None}})
    assert await api.get(CONFIG_MAP, namespace, "a") is None


async def test_a_dry_run_changes_nothing(api: Api, namespace: str) -> None:
    await api.create(CONFIG_MAP, namespace, config_map(), dry_run=True)
    assert await api.get(CONFIG_MAP, namespace, "a") is None


async def test_each_refusal_has_a_name(api: Api, namespace: str) -> None:
    await api.create(CONFIG_MAP, namespace, config_map())
    with pytest.raises(AlreadyExists):
        await api.create(CONFIG_MAP, namespace, config_map())
    with pytest.raises(NotFound, match=r"namespaces \"nowhere\" not found"):
        await api.create(CONFIG_MAP, "nowhere", config_map())
    with pytest.raises(NotFound):
        await api.patch(CONFIG_MAP, namespace, "b", {"data": {}})
    with pytest.raises(NotFound):
        await api.list(Kind("nothing.example.com/v1", "nothings", "Nothing"), namespace)
    with pytest.raises(Invalid) as caught:
        await api.create(CONFIG_MAP, namespace, config_map("Not A Name"))
    assert caught.value.code == 422
    assert [field for field, _ in caught.value.causes] == ["metadata.name"]
    with pytest.raises(Invalid, match="cannot unmarshal"):
        await api.patch(CONFIG_MAP, namespace, "a", {"data": "text"})


async def test_a_quota_that_is_used_up_and_a_namespace_that_ends_are_told(api: Api, namespace: str) -> None:
    quota = Kind("v1", "resourcequotas", "ResourceQuota")
    await api.create(quota, namespace, {"metadata": {"name": "none"}, "spec": {"hard": {"count/secrets": "0"}}})
    for _ in range(100):  # the controller has to count first
        found = await api.get(quota, namespace, "none")
        if found and (found.get("status") or {}).get("hard"):
            break
        await asyncio.sleep(0.1)
    with pytest.raises(Forbidden, match="exceeded quota"):
        await api.create(SECRET, namespace, {"metadata": {"name": "a"}})
    held: Object = {"metadata": {"name": "held", "finalizers": ["sinkjob.io/ledger"]}}
    await api.create(CONFIG_MAP, namespace, held)
    await api.delete(NAMESPACE, "", namespace)
    with pytest.raises(Forbidden, match="being terminated"):
        await api.create(CONFIG_MAP, namespace, config_map())


async def test_an_expired_list_is_begun_again_and_not_for_ever(
    api: Api, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Request] = []

    async def expire(request: Request) -> bytes:
        sent.append(request)
        raise Gone("too old")

    monkeypatch.setattr(api._transport, "send", expire)
    with pytest.raises(Unavailable, match="expired 3 times"):
        await api.list(CONFIG_MAP, namespace)
    assert len(sent) == 3


async def test_without_rights_it_is_forbidden_and_a_review_says_so(
    kubeconfig: Path, api: Api, namespace: str, control_plane: ControlPlane
) -> None:
    await api.create(SERVICE_ACCOUNT, namespace, {"metadata": {"name": "driver"}})
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["a-ledger"]}
    rules: list[Any] = [{**rule, "verbs": ["get", "list", "watch", "patch"]}]
    await api.create(ROLE, namespace, {"metadata": {"name": "driver"}, "rules": rules})
    await api.create(ROLE_BINDING, namespace, binding("driver", namespace))
    token = await api.token(namespace, "driver", audience="", seconds=600)
    limited = control_plane.kubeconfig_for(control_plane.address, token, name="driver")
    await api.create(CONFIG_MAP, namespace, config_map("a-ledger"))
    async with await Api.connect(ApiSettings(kubeconfig=str(limited))) as driver:
        assert await driver.get(CONFIG_MAP, namespace, "a-ledger") is not None
        assert len((await driver.list(CONFIG_MAP, namespace, name="a-ledger"))[0]) == 1
        async with driver.watch(CONFIG_MAP, namespace, name="a-ledger") as watch:
            await asyncio.wait_for(watch.synced.wait(), 10)
        with pytest.raises(Forbidden, match="cannot create resource"):
            await driver.create(CONFIG_MAP, namespace, config_map("b"))
        with pytest.raises(Forbidden):
            await driver.list(CONFIG_MAP, namespace)
        assert await driver.allowed("patch", CONFIG_MAP, namespace, name="a-ledger")
        assert not await driver.allowed("patch", CONFIG_MAP, namespace, name="b-ledger")
        assert not await driver.allowed("get", POD, namespace, subresource="log")


def binding(name: str, namespace: str) -> Object:
    return {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }


async def test_credentials_that_are_not_accepted_may_be_accepted_later(
    kubeconfig: Path, control_plane: ControlPlane
) -> None:
    wrong = control_plane.kubeconfig_for(control_plane.address, "no-token", name="wrong")
    async with await Api.connect(ApiSettings(kubeconfig=str(wrong))) as api:
        with pytest.raises(Unavailable) as caught:
            await api.list(CONFIG_MAP)
        assert caught.value.code == 401


async def test_the_log_of_a_pod_that_runs_nowhere(api: Api, namespace: str) -> None:
    with pytest.raises(NotFound):
        await api.log_tail(namespace, "none")
    container = {"name": "main", "image": "none"}
    await api.create(SERVICE_ACCOUNT, namespace, {"metadata": {"name": "mine"}})
    spec = {"serviceAccountName": "mine", "automountServiceAccountToken": False, "containers": [container]}
    await api.create(POD, namespace, {"metadata": {"name": "a"}, "spec": spec})
    assert await api.log_tail(namespace, "a", lines=3, container="main") == ""
    with pytest.raises(Invalid, match="container other is not valid for pod a"):
        await api.log_tail(namespace, "a", container="other")
    assert await api.delete(POD, namespace, "a", grace_seconds=0)
    assert await api.get(POD, namespace, "a") is None


async def test_every_request_is_counted_and_told(api: Api, namespace: str) -> None:
    told: list[tuple[str, str, str, float]] = []
    api.on_request = lambda verb, kind, code, seconds: told.append((verb, kind, code, seconds))
    before = api.requests.copy()
    await api.create(LEASE, namespace, {"metadata": {"name": "a"}, "spec": {}})
    await api.get(LEASE, namespace, "none")
    with pytest.raises(AlreadyExists):
        await api.create(LEASE, namespace, {"metadata": {"name": "a"}, "spec": {}})
    expected = [("create", "Lease", "200"), ("get", "Lease", "NotFound"), ("create", "Lease", "AlreadyExists")]
    assert [entry[:3] for entry in told] == expected
    assert all(0 < entry[3] < 15 for entry in told)
    assert set((api.requests - before).elements()) == set(expected)


async def test_no_kubeconfig_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="set KUBECONFIG"):
        await Api.connect(ApiSettings(kubeconfig=str(tmp_path / "none")))
    (tmp_path / "bad").write_text("current-context: a\ncontexts: 3\n")
    with pytest.raises(ConfigurationError, match="bad does not say how to reach a cluster"):
        await Api.connect(ApiSettings(kubeconfig=str(tmp_path / "bad")))
