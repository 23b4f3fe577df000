"""What every ledger store must do; a store's test class inherits `LedgerStoreContract` and gives a fixture `store`."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from sinkruntime.errors import LedgerConflict, LedgerCorrupt, LedgerError
from sinkruntime.ledger.store import LedgerStore
from sinkruntime.protocol.ledger import Ledger

NEW = Ledger("ledger-1", "team/flights")


def at_epoch(epoch: int) -> Ledger:
    """A ledger that is told from others by its epoch."""
    return replace(NEW, epoch=epoch, firsts=(1,) * epoch)


class LedgerStoreContract:
    """The shared tests."""

    def test_there_is_no_ledger_at_first(self, store: LedgerStore) -> None:
        assert asyncio.run(store.load()) is None

    def test_what_is_created_is_loaded(self, store: LedgerStore) -> None:
        async def play() -> None:
            created = await store.create(NEW)
            assert created.ledger == NEW
            assert await store.load() == created

        asyncio.run(play())

    def test_a_ledger_is_created_only_where_there_is_none(self, store: LedgerStore) -> None:
        async def play() -> None:
            created = await store.create(NEW)
            with pytest.raises(LedgerConflict):
                await store.create(at_epoch(1))
            assert await store.load() == created

        asyncio.run(play())

    def test_a_replacement_needs_the_present_version_and_makes_a_new_one(self, store: LedgerStore) -> None:
        async def play() -> None:
            first = await store.create(NEW)
            second = await store.replace(at_epoch(1), first.version)
            assert second.version != first.version
            assert await store.load() == second
            with pytest.raises(LedgerConflict):
                await store.replace(at_epoch(2), first.version)
            assert await store.load() == second

        asyncio.run(play())

    def test_writing_the_same_ledger_again_is_a_new_version(self, store: LedgerStore) -> None:
        async def play() -> None:
            first = await store.create(NEW)
            assert (await store.replace(NEW, first.version)).version != first.version

        asyncio.run(play())

    def test_a_ledger_that_is_not_there_cannot_be_replaced(self, store: LedgerStore) -> None:
        async def play() -> None:
            with pytest.raises(LedgerError):
                await store.replace(NEW, "1")
            assert await store.load() is None

        asyncio.run(play())

    def test_of_concurrent_writers_exactly_one_wins_each_version(self, store: LedgerStore) -> None:
        async def writer() -> int:
            won = 0
            for _ in range(20):
                present = await store.load()
                assert present is not None
                await asyncio.sleep(0)
                try:
                    await store.replace(at_epoch(present.ledger.epoch + 1), present.version)
                except LedgerConflict:
                    continue
                won += 1
            return won

        async def play() -> None:
            await store.create(NEW)
            wins = await asyncio.gather(*(writer() for _ in range(5)))
            last = await store.load()
            assert last is not None
            assert last.ledger.epoch == sum(wins) >= 20

        asyncio.run(play())

    def test_a_waiter_is_woken_by_a_change(self, store: LedgerStore) -> None:
        async def play() -> None:
            first = await store.create(NEW)
            waiter = asyncio.create_task(store.wait_changed(first.version, 20.0))
            await asyncio.sleep(0.01)
            assert not waiter.done()
            await store.replace(at_epoch(1), first.version)
            await asyncio.wait_for(waiter, 2.0)

        asyncio.run(play())

    def test_a_waiter_returns_at_once_where_the_change_has_come_and_else_after_its_time(
        self, store: LedgerStore
    ) -> None:
        async def play() -> None:
            first = await store.create(NEW)
            await asyncio.wait_for(store.wait_changed(first.version, 0.02), 2.0)
            await store.replace(at_epoch(1), first.version)
            await asyncio.wait_for(store.wait_changed(first.version, 20.0), 2.0)

        asyncio.run(play())

    def test_waiting_is_only_a_hint_and_never_an_error(self, store: LedgerStore) -> None:
        asyncio.run(asyncio.wait_for(store.wait_changed("1", 0.01), 2.0))

    def test_payload_objects_are_kept_listed_and_removed(self, store: LedgerStore) -> None:
        async def play() -> None:
            assert await store.list_objects() == []
            await store.put_object("2-bb", b"b" * 100_000)
            await store.put_object("1-aa", b"")
            await store.put_object("2-bb", b"b" * 100_000)
            assert await store.list_objects() == ["1-aa", "2-bb"]
            assert await store.get_object("2-bb") == b"b" * 100_000
            assert await store.get_object("1-aa") == b""
            await store.remove_object("2-bb")
            await store.remove_object("2-bb")
            assert await store.list_objects() == ["1-aa"]

        asyncio.run(play())

    def test_a_missing_payload_object_is_a_corrupt_ledger(self, store: LedgerStore) -> None:
        with pytest.raises(LedgerCorrupt, match="1-aa"):
            asyncio.run(store.get_object("1-aa"))


class SharedStoreContract(LedgerStoreContract):
    """For stores that other processes see too: `store` is used by several threads, each with a loop of its own."""

    def other(self, store: LedgerStore) -> LedgerStore:
        """Another client of the same place."""
        raise NotImplementedError

    def test_of_clients_in_threads_exactly_one_wins_each_version(self, store: LedgerStore) -> None:
        asyncio.run(store.create(NEW))
        wins: list[int] = []

        async def play(client: LedgerStore) -> None:
            won = 0
            for _ in range(15):
                present = await client.load()
                assert present is not None
                try:
                    await client.replace(at_epoch(present.ledger.epoch + 1), present.version)
                except LedgerConflict:
                    continue
                won += 1
            wins.append(won)

        clients = [self.other(store) for _ in range(4)]
        threads = [threading.Thread(target=lambda c=client: asyncio.run(play(c))) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        last = asyncio.run(self.other(store).load())  # a new client asks; an old one may not have heard of it yet
        assert last is not None
        assert len(wins) == 4
        assert last.ledger.epoch == sum(wins) >= 15

    def test_a_waiter_sees_another_clients_change(self, store: LedgerStore) -> None:
        async def play() -> None:
            first = await store.create(NEW)
            waiter = asyncio.create_task(store.wait_changed(first.version, 20.0))
            await asyncio.sleep(0.01)
            await self.other(store).replace(at_epoch(1), first.version)
            await asyncio.wait_for(waiter, 5.0)

        asyncio.run(play())
