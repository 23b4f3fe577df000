"""The ConfigMap store keeps the contract of ledger stores, against a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from sinkruntime.kube import CONFIG_MAP, Api, ApiSettings
from sinkruntime.ledger.configmap import ConfigMapLedgerStore, LedgerPlace
from sinkruntime.ledger.store import LedgerStore
from tests.kube.bridge import BridgedStore, LoopThread
from tests.unit.ledger.contract import NEW, SharedStoreContract


class TestConfigMapLedgerStore(SharedStoreContract):
    @pytest.fixture(params=["watched", "unwatched"])
    def store(self, request: pytest.FixtureRequest, kubeconfig: Path, namespace: str) -> Iterator[BridgedStore]:
        with LoopThread() as thread:
            stack = AsyncExitStack()

            async def open_one() -> BridgedStore:
                api = await stack.enter_async_context(await Api.connect(ApiSettings(kubeconfig=str(kubeconfig))))
                place = LedgerPlace(namespace, "flights")
                if request.param == "unwatched":
                    return BridgedStore(ConfigMapLedgerStore(api, place), thread)
                watch = await stack.enter_async_context(api.watch(CONFIG_MAP, namespace, name=place.name))
                return BridgedStore(ConfigMapLedgerStore(api, place, watch), thread)

            self.open_one = open_one
            self.thread = thread
            self.watched = request.param == "watched"
            made = thread.run(open_one())
            yield made
            thread.run(stack.aclose())

    def other(self, store: LedgerStore) -> LedgerStore:
        return self.thread.run(self.open_one())

    def test_payload_objects_are_kept_listed_and_removed(self, store: LedgerStore) -> None:
        asyncio.run(store.create(NEW))  # they are owned by it
        super().test_payload_objects_are_kept_listed_and_removed(store)

    def test_a_waiter_is_woken_by_a_change(self, store: LedgerStore) -> None:
        self.needs_a_watch()
        super().test_a_waiter_is_woken_by_a_change(store)

    def test_a_waiter_sees_another_clients_change(self, store: LedgerStore) -> None:
        self.needs_a_watch()
        super().test_a_waiter_sees_another_clients_change(store)

    def test_a_waiter_returns_at_once_where_the_change_has_come_and_else_after_its_time(
        self, store: LedgerStore
    ) -> None:
        self.needs_a_watch()
        super().test_a_waiter_returns_at_once_where_the_change_has_come_and_else_after_its_time(store)

    def needs_a_watch(self) -> None:
        if not self.watched:
            pytest.skip("by design: without a watch a waiter hears nothing")
