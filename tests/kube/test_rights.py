"""The rights that the ledger store's docstring names are enough for a driver, and they end at its own ledger."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sinkruntime.errors import LedgerUnavailable
from sinkruntime.kube import CONFIG_MAP, ROLE, ROLE_BINDING, SERVICE_ACCOUNT, Api, ApiSettings, Forbidden, Unavailable
from sinkruntime.ledger.configmap import ConfigMapLedgerStore, LedgerPlace
from sinkruntime.ledger.configmap_payloads import CHUNK_BYTES_MAX
from sinkruntime.ledger.payloads import object_name
from tests.kube.control_plane import ControlPlane
from tests.unit.ledger.contract import NEW, at_epoch

DRIVER_RULES = [
    {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": ["flights-ledger"],
        "verbs": ["get", "list", "watch", "patch"],
    },
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "get"]},
]


async def make_driver(api: Api, namespace: str) -> str:
    """A service account with the driver's rights; its token."""
    await api.create(SERVICE_ACCOUNT, namespace, {"metadata": {"name": "driver"}})
    await api.create(ROLE, namespace, {"metadata": {"name": "driver"}, "rules": DRIVER_RULES})
    subject = {"kind": "ServiceAccount", "name": "driver", "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "driver"}
    body = {"metadata": {"name": "driver"}, "roleRef": role, "subjects": [subject]}
    await api.create(ROLE_BINDING, namespace, body)
    return await api.token(namespace, "driver", audience="", seconds=600)


@pytest.fixture
def driver(api: Api, namespace: str, control_plane: ControlPlane, runner: asyncio.Runner) -> Iterator[Api]:
    """The API server as a driver sees it."""
    token = runner.run(make_driver(api, namespace))
    kubeconfig = control_plane.kubeconfig_for(control_plane.address, token, name="driver")
    made = runner.run(Api.connect(ApiSettings(kubeconfig=str(kubeconfig))))
    yield made
    runner.run(made.close())


async def test_a_driver_reads_decides_and_stores_payloads(api: Api, driver: Api, namespace: str) -> None:
    place = LedgerPlace(namespace, "flights")
    first = await ConfigMapLedgerStore(api, place).create(NEW)
    async with driver.watch(CONFIG_MAP, namespace, name=place.name) as watch:
        await asyncio.wait_for(watch.synced.wait(), 10.0)
        store = ConfigMapLedgerStore(driver, place, watch)
        assert await store.load() == first
        written = await store.replace(at_epoch(1), first.version)
        data = os.urandom(CHUNK_BYTES_MAX + 1)
        name = object_name(1, hashlib.sha256(data).hexdigest())
        await store.put_object(name, data)
        await store.put_object(name, data)
        assert await store.get_object(name) == data
        waiter = asyncio.create_task(store.wait_changed(written.version, 10.0))
        await ConfigMapLedgerStore(api, place).replace(at_epoch(2), written.version)
        await asyncio.wait_for(waiter, 5.0)


async def test_a_driver_cannot_touch_another_jobs_ledger_nor_remove_anything(
    api: Api, driver: Api, namespace: str
) -> None:
    for job in ("flights", "other"):
        await ConfigMapLedgerStore(api, LedgerPlace(namespace, job)).create(NEW)
    other = ConfigMapLedgerStore(driver, LedgerPlace(namespace, "other"))
    stored = await other.load()
    assert stored is not None
    with pytest.raises(LedgerUnavailable, match="is forbidden"):
        await other.replace(at_epoch(1), stored.version)
    for name in ("flights-ledger", "other-ledger"):
        with pytest.raises(Forbidden):
            await driver.delete(CONFIG_MAP, namespace, name)
    with pytest.raises(Forbidden):
        await driver.list(CONFIG_MAP, namespace)


async def test_a_pods_token_is_read_again_when_it_was_replaced(
    api: Api, namespace: str, control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datetime as real

    from kubernetes.aio.config import incluster_config

    class Later(real.datetime):
        ahead = real.timedelta()

        @classmethod
        def now(cls, tz: real.tzinfo | None = None) -> Later:
            return super().now(tz) + cls.ahead

    host, _, port = control_plane.address.partition(":")
    token, certificate = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text(await make_driver(api, namespace))
    certificate.write_bytes((control_plane.folder / "certificates" / "apiserver.crt").read_bytes())
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(certificate))
    monkeypatch.setattr("datetime.datetime", Later)
    async with await Api.connect() as pod:
        assert await pod.get(CONFIG_MAP, namespace, "none") is None
        good = token.read_text()
        token.write_text("replaced")
        Later.ahead = real.timedelta(minutes=2)
        with pytest.raises(Unavailable) as caught:
            await pod.get(CONFIG_MAP, namespace, "none")
        assert caught.value.code == 401
        token.write_text(good)
        Later.ahead = real.timedelta(minutes=4)
        assert await pod.get(CONFIG_MAP, namespace, "none") is None
