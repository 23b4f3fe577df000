"""What a checkpoint costs the API server: decision, commit and acknowledgement with the ledger in a ConfigMap."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sinkruntime.kube import CONFIG_MAP, Api
from sinkruntime.ledger.configmap import ConfigMapLedgerStore, LedgerPlace
from tests.kube.test_watch import until
from tests.unit.coordinator.world import World, settled

CHECKPOINTS = 20

#: Of the issue: with inline payloads.
WRITES_MAX = 3


@pytest.mark.parametrize("sinks", [1, 3])
@pytest.mark.parametrize("idle", [True, False])
async def test_a_checkpoint_costs_at_most_three_writes_and_no_read(
    api: Api, namespace: str, idle: bool, sinks: int
) -> None:
    place = LedgerPlace(namespace, "flights")
    tiers = {f"sink-{index}": "committer" for index in range(sinks)}
    async with (
        api.watch(CONFIG_MAP, namespace, name=place.name) as own,
        api.watch(CONFIG_MAP, namespace, labels="app.kubernetes.io/component=ledger") as shared,
    ):
        driver = World(tiers=tiers, store=cast(Any, ConfigMapLedgerStore(api, place, own)))
        operator = World(tiers=tiers, store=cast(Any, ConfigMapLedgerStore(api, place, shared)), target=driver.target)
        await driver.begin()
        await until(lambda: bool(own.get(namespace, place.name) and shared.get(namespace, place.name)))
        async with operator.working():
            await driver.decide(1)
            await operator.until(lambda ledger: settled(ledger) and bool(ledger.closed))  # recovery is a write, too
            before = api.requests.copy()
            for number in range(2, CHECKPOINTS + 2):
                await driver.decide(number)
                if idle:
                    await operator.until(lambda ledger, n=number: settled(ledger) and ledger.decided == n)  # type: ignore[misc]
                else:
                    await driver.until(lambda ledger: len(ledger.pending) < 4)
            await operator.until(lambda ledger: settled(ledger) and ledger.decided == CHECKPOINTS + 1)
            asked = {
                (verb, code): count for (verb, _, code), count in (api.requests - before).items() if verb != "watch"
            }
    conflicts = asked.pop(("patch", "Conflict"), 0)
    assert asked.pop(("patch", "200")) <= WRITES_MAX * CHECKPOINTS
    # Here one decides in the very moment in which the other reports. Who loses reads once; nothing else reads.
    assert conflicts <= CHECKPOINTS
    assert asked.pop(("get", "200"), 0) <= conflicts
    assert not asked
