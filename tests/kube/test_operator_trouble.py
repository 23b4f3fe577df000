"""What goes wrong with a job on a real API server: each is a condition with what to do, and none a loop."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from typing import Any

import pytest

from sinkoperator import names
from sinkruntime.kube import CONFIG_MAP, NAMESPACE, POD, SECRET, SINK_JOB, Api, Kind
from sinkruntime.ledger.configmap import KEY
from tests.kube.operator_world import SETTINGS, Kubelet, Looker, manifest

QUOTA = Kind("v1", "resourcequotas", "ResourceQuota")
FOREVER = {"backoff": {"initial": "1h", "max": "1h"}}


async def stalled(looker: Looker) -> dict[str, Any]:
    """The condition, once it is there."""
    found: dict[str, Any] = await looker.settle(lambda: looker.condition("Stalled"))
    return found


async def last_cause(looker: Looker) -> str:
    """Why the last driver ended, as the status has it."""
    return str((await looker.status()).get("restarts", {}).get("lastCause"))


async def first_driver(api: Api, looker: Looker) -> Kubelet:
    """The job is applied, and its driver runs."""
    await api.create(SINK_JOB, looker.namespace, manifest(restartPolicy=FOREVER))
    await looker.settle(lambda: looker.driver(1))
    kubelet = Kubelet(api, looker.namespace, names.driver_name("one", 1))
    await kubelet.runs()
    return kubelet


@pytest.mark.parametrize(
    ("end", "cause", "failures"),
    [
        ((1, "", '{"reason": "TargetDown", "message": "no route"}'), "TargetDown", 1),
        ((1, "", ""), "DriverFailed", 1),
        ((3, "", '{"reason": "Fenced", "message": "epoch 2 is there"}'), "Fenced", 0),
        ((137, "OOMKilled", ""), "DriverOOMKilled", 1),
        ((137, "", ""), "DriverKilled", 0),
    ],
)
async def test_an_end_is_told_and_counted_by_its_cause(
    api: Api, namespace: str, end: tuple[int, str, str], cause: str, failures: int
) -> None:
    async with Looker(api, namespace) as looker:
        kubelet = await first_driver(api, looker)
        await kubelet.ends(*end)

        async def counted() -> bool:
            return await last_cause(looker) == cause

        await looker.settle(counted)
        restarts = (await looker.status())["restarts"]
        assert (restarts["total"], restarts["consecutiveFailures"]) == (1, failures)
        assert cause in looker.told.events
        await looker.look(times=3)
        assert await looker.driver(2) is None, "it waits an hour"


async def test_an_evicted_driver_is_not_the_jobs_failure(api: Api, namespace: str) -> None:
    async with Looker(api, namespace) as looker:
        kubelet = await first_driver(api, looker)
        await kubelet.evicted()

        async def counted() -> bool:
            return await last_cause(looker) == "DriverEvicted"

        await looker.settle(counted)
        assert (await looker.status())["restarts"]["consecutiveFailures"] == 0


async def test_a_driver_that_refuses_the_manifest_stalls_the_job_until_it_is_edited(api: Api, namespace: str) -> None:
    async with Looker(api, namespace) as looker:
        kubelet = await first_driver(api, looker)
        said = '{"reason": "InvalidSpec", "message": "no such column", "path": "spec.sinks[0].select"}'
        await kubelet.ends(2, message=said)

        condition = await stalled(looker)
        assert condition["reason"] == "InvalidSpec"
        assert "spec.sinks[0].select" in condition["message"]
        await api.patch(SINK_JOB, namespace, "one", {"spec": {"sparkConf": {"spark.a": "b"}}})
        await looker.settle(lambda: looker.driver(2))


async def test_an_invalid_manifest_names_the_field_and_starts_nothing(api: Api, namespace: str) -> None:
    sinks = [{"name": "lake", "type": "file", "options": {"path": "s3a://bucket/out", "formta": "parquet"}}]
    await api.create(SINK_JOB, namespace, manifest(sinks=sinks))
    async with Looker(api, namespace) as looker:
        condition = await stalled(looker)

        assert condition["reason"] == "InvalidSpec"
        assert "spec.sinks[0].options.formta" in condition["message"]
        await looker.look(times=3)
        assert await looker.pods() == []
        assert await looker.ledger() is None


async def test_a_missing_secret_is_waited_for(api: Api, namespace: str) -> None:
    source = {"format": "rate", "optionsFrom": [{"secretRef": {"name": "credentials"}}]}
    await api.create(SINK_JOB, namespace, manifest(source=source))
    async with Looker(api, namespace) as looker:
        condition = await stalled(looker)
        assert condition["reason"] == "SecretNotFound"
        assert "spec.source.optionsFrom[0]" in condition["message"]
        assert await looker.pods() == []

        value = base64.b64encode(b"a-secret-value").decode()
        await api.create(SECRET, namespace, {"metadata": {"name": "credentials"}, "data": {"password": value}})
        await looker.settle(lambda: looker.driver(1))
        for kind in (SINK_JOB, CONFIG_MAP, POD):
            assert "a-secret-value" not in str((await api.list(kind, namespace))[0])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{not json", "LedgerCorrupt"),
        ('{"format":999,"sha256":"x","ledger":{}}', "LedgerFormatTooNew"),
    ],
)
async def test_a_ledger_that_cannot_be_read_stops_everything(api: Api, namespace: str, text: str, reason: str) -> None:
    async with Looker(api, namespace) as looker:
        kubelet = await first_driver(api, looker)
        ledger = names.ledger_name("one")
        await api.patch(CONFIG_MAP, namespace, ledger, {"data": {KEY: text}})
        await kubelet.ends(1)

        assert (await stalled(looker))["reason"] == reason
        await looker.look(times=3)
        assert await looker.driver(2) is None
        kept = await api.get(CONFIG_MAP, namespace, ledger)
        assert kept is not None
        assert kept["data"][KEY] == text, "nothing is repaired"


async def test_a_ledger_that_was_deleted_by_hand_stays_while_its_job_is_there(api: Api, namespace: str) -> None:
    async with Looker(api, namespace) as looker:
        await first_driver(api, looker)
        await api.delete(CONFIG_MAP, namespace, names.ledger_name("one"))
        await looker.look(times=3)

        ledger = await looker.ledger()
        assert ledger is not None
        assert ledger.epoch == 1


async def test_a_foreign_pod_of_the_drivers_name_is_left_alone(api: Api, namespace: str) -> None:
    name = names.driver_name("one", 1)
    container = {"name": "c", "image": "i"}
    foreign = await api.create(POD, namespace, {"metadata": {"name": name}, "spec": {"containers": [container]}})
    await api.create(SINK_JOB, namespace, manifest())
    async with Looker(api, namespace) as looker:

        async def told() -> bool:
            return "NameTaken" in str((await looker.status()).get("conditions"))

        await looker.settle(told)
        await looker.look(times=3)
        present = await looker.driver(1)
        assert present is not None
        assert present["metadata"]["uid"] == foreign["metadata"]["uid"]
        await api.delete(POD, namespace, name, grace_seconds=0)

        async def ours() -> bool:
            pod = await looker.driver(1)
            return pod is not None and pod["metadata"]["uid"] != foreign["metadata"]["uid"]

        await looker.settle(ours)


async def test_a_full_quota_is_told_and_waited_for(api: Api, namespace: str) -> None:
    await api.create(QUOTA, namespace, {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}})
    await counted(api, namespace)
    await api.create(SINK_JOB, namespace, manifest())
    async with Looker(api, namespace) as looker:

        async def told() -> bool:
            return "QuotaExceeded" in str((await looker.status()).get("conditions"))

        await looker.settle(told)
        await looker.look(times=5)
        ledger = await looker.ledger()
        assert ledger is not None
        assert ledger.epoch == 1, "a start that was refused is the same one the next time"
        await api.delete(QUOTA, namespace, "none")
        await looker.settle(lambda: looker.driver(1))


async def counted(api: Api, namespace: str) -> None:
    """A quota holds once its controller has counted."""
    for _ in range(200):
        quota = await api.get(QUOTA, namespace, "none")
        if quota is not None and (quota.get("status") or {}).get("hard"):
            return
        await asyncio.sleep(0.05)
    raise TimeoutError("the quota was never counted")


async def test_pod_security_is_told_with_the_template_as_its_place(api: Api, namespace: str) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await api.patch(NAMESPACE, "", namespace, {"metadata": {"labels": labels}})
    template = {"spec": {"hostNetwork": True}}
    await api.create(SINK_JOB, namespace, manifest(driver={"podTemplate": template}))
    async with Looker(api, namespace) as looker:

        async def told() -> bool:
            return "spec.driver.podTemplate" in str((await looker.status()).get("conditions"))

        await looker.settle(told)
        assert "PodSecurityRefused" in str(await looker.status())
        await api.patch(SINK_JOB, namespace, "one", {"spec": {"driver": {"podTemplate": None}}})
        await looker.settle(lambda: looker.driver(1))


async def test_ours_passes_restricted_pod_security(api: Api, namespace: str) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await api.patch(NAMESPACE, "", namespace, {"metadata": {"labels": labels}})
    await api.create(SINK_JOB, namespace, manifest())
    async with Looker(api, namespace) as looker:
        await looker.settle(lambda: looker.driver(1))


@pytest.mark.parametrize("most", [0, 1])
async def test_one_job_more_than_the_namespace_may_have_waits(api: Api, namespace: str, most: int) -> None:
    async with Looker(api, namespace, replace(SETTINGS, drivers_per_namespace_max=most)) as looker:
        await first_driver(api, looker)
        await api.create(SINK_JOB, namespace, manifest("two"))

        async def told() -> bool:
            return (await looker.condition("Ready", "two")).get("reason") == "NamespaceLimit"

        if most:
            await looker.settle(told, "two")
            assert await looker.driver(1, "two") is None
        else:
            await looker.settle(lambda: looker.driver(1, "two"), "two")
