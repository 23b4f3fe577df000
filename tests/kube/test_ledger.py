"""The ledger in a ConfigMap: what it looks like, what is done to it by hand, and what goes wrong on the way."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from sinkruntime.environment import Environment
from sinkruntime.errors import (
    AnswerLost,
    LedgerConflict,
    LedgerCorrupt,
    LedgerFormatTooNew,
    LedgerTooLarge,
    LedgerUnavailable,
)
from sinkruntime.kube import CONFIG_MAP, Api, Conflict, Unanswered, Unavailable
from sinkruntime.ledger.change import change
from sinkruntime.ledger.configmap import KEY, LEDGER_BYTES_MAX, ConfigMapLedgerStore, LedgerPlace
from sinkruntime.protocol import codec
from sinkruntime.protocol.events import Event, RaiseToken
from sinkruntime.protocol.ledger import Ledger
from tests.kube.control_plane import ControlPlane
from tests.kube.test_watch import QUICK, until
from tests.servers.toxiproxy import Proxy, Toxiproxy
from tests.unit.ledger.contract import NEW, at_epoch

NAME = "flights-ledger"


@pytest.fixture
def place(namespace: str) -> LedgerPlace:
    return LedgerPlace(namespace, "flights")  # an owner that is not there would let the cluster delete it


@pytest.fixture
def proxy(toxiproxy: Toxiproxy, control_plane: ControlPlane) -> Iterator[Proxy]:
    with toxiproxy.proxy(control_plane.address) as made:
        yield made


@pytest.fixture
def proxied(proxy: Proxy, control_plane: ControlPlane, runner: asyncio.Runner) -> Iterator[Api]:
    kubeconfig = control_plane.kubeconfig_for(proxy.listen, name="proxied")
    made = runner.run(Api.connect(replace(QUICK, kubeconfig=str(kubeconfig))))
    yield made
    runner.run(made.close())


def requests(api: Api, since: Any) -> dict[tuple[str, str], int]:
    """What was asked since a copy of the counter was made, without watches."""
    new = api.requests - since
    return {(verb, code): count for (verb, _, code), count in new.items() if verb != "watch"}


async def test_it_is_labelled_owned_and_kept_by_a_finalizer(api: Api, place: LedgerPlace) -> None:
    owned = replace(place, uid="11111111-2222-3333-4444-555555555555")
    await ConfigMapLedgerStore(api, owned).create(NEW)
    found = await api.get(CONFIG_MAP, place.namespace, NAME)
    assert found is not None
    metadata = found["metadata"]
    assert metadata["finalizers"] == ["sinkjob.io/ledger"]
    assert metadata["labels"]["app.kubernetes.io/managed-by"] == "sinkjob"
    assert metadata["labels"]["sinkjob.io/job"] == "flights"
    assert metadata["annotations"]["sinkjob.io/owner"] == owned.uid
    assert "ownerReferences" not in metadata, "the garbage collector must not take what is pending"
    assert codec.decode(found["data"][KEY]) == NEW


async def test_a_replacement_leaves_what_others_wrote(api: Api, place: LedgerPlace) -> None:
    store = ConfigMapLedgerStore(api, place)
    await store.create(NEW)
    theirs = {"metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}}, "data": {"other": "c"}}
    marked = await api.patch(CONFIG_MAP, place.namespace, NAME, theirs)
    await store.replace(at_epoch(1), marked["metadata"]["resourceVersion"])
    found = await api.get(CONFIG_MAP, place.namespace, NAME)
    assert found is not None
    assert found["metadata"]["labels"]["team"] == "a"
    assert found["metadata"]["annotations"]["note"] == "b"
    assert found["data"]["other"] == "c"


async def test_a_ledger_that_is_being_deleted_is_still_the_ledger(api: Api, place: LedgerPlace) -> None:
    store = ConfigMapLedgerStore(api, place)
    await store.create(NEW)
    await api.delete(CONFIG_MAP, place.namespace, NAME)
    stored = await store.load()
    assert stored is not None
    written = await store.replace(at_epoch(1), stored.version)
    assert await ConfigMapLedgerStore(api, place).load() == written
    with pytest.raises(LedgerConflict):
        await store.create(NEW)


@pytest.mark.parametrize("watched", [True, False])
async def test_one_that_was_deleted_by_hand_is_none_and_cannot_be_replaced(
    api: Api, place: LedgerPlace, watched: bool
) -> None:
    async with api.watch(CONFIG_MAP, place.namespace, name=NAME) as watch:
        store = ConfigMapLedgerStore(api, place, watch if watched else None)
        stored = await store.create(NEW)
        waiter = asyncio.create_task(store.wait_changed(stored.version, 20.0 if watched else 0.1))
        await until(lambda: watch.get(place.namespace, NAME) is not None)
        await api.patch(CONFIG_MAP, place.namespace, NAME, {"metadata": {"finalizers": None}})
        await api.delete(CONFIG_MAP, place.namespace, NAME)
        with pytest.raises(LedgerConflict):
            await store.replace(at_epoch(1), stored.version)
        assert await store.load() is None
        await asyncio.wait_for(waiter, 5.0)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (None, LedgerCorrupt, "has no key ledger.json"),
        ("", LedgerCorrupt, "torn or no ledger"),
        (codec.encode(NEW)[:-9], LedgerCorrupt, "torn or no ledger"),
        (codec.encode(NEW).replace("team/flights", "team/other"), LedgerCorrupt, "edited by hand"),
        (codec.encode(NEW).replace('"format":1', '"format":99'), LedgerFormatTooNew, "99 is newer"),
    ],
)
async def test_what_a_hand_did_to_it_is_told_and_not_overwritten(
    api: Api, place: LedgerPlace, text: str | None, error: type[LedgerCorrupt], message: str
) -> None:
    async with api.watch(CONFIG_MAP, place.namespace, name=NAME) as watch:
        for store in (ConfigMapLedgerStore(api, place), ConfigMapLedgerStore(api, place, watch)):
            if await api.get(CONFIG_MAP, place.namespace, NAME) is None:
                await store.create(NEW)
                await api.patch(CONFIG_MAP, place.namespace, NAME, {"data": {KEY: text}})
            with pytest.raises(error, match=message) as caught:
                await store.load()
            assert f"{place.namespace}/{NAME}" in caught.value.message
            assert re.search("LedgerLost|newer release", caught.value.advice)
            before = await api.get(CONFIG_MAP, place.namespace, NAME)
            with pytest.raises(LedgerConflict):
                await store.replace(at_epoch(1), "1")
            assert await api.get(CONFIG_MAP, place.namespace, NAME) == before
            await watch.synced.wait()
            await until(lambda: watch.get(place.namespace, NAME) is not None)


async def test_two_that_claim_the_same_from_one_version_do_not_both_win(api: Api, place: LedgerPlace) -> None:
    first = await ConfigMapLedgerStore(api, place).create(NEW)
    stores = [ConfigMapLedgerStore(api, place) for _ in range(2)]
    results = await asyncio.gather(*(s.replace(at_epoch(1), first.version) for s in stores), return_exceptions=True)
    assert sum(isinstance(result, LedgerConflict) for result in results) == 1


async def test_a_ledger_that_would_not_fit_is_not_sent(api: Api, place: LedgerPlace) -> None:
    store = ConfigMapLedgerStore(api, place)
    first = await store.create(NEW)
    before = api.requests.copy()
    with pytest.raises(LedgerTooLarge, match="nothing was sent"):
        await store.replace(Ledger("ledger-1", "x" * LEDGER_BYTES_MAX), first.version)
    assert api.requests == before
    room = LEDGER_BYTES_MAX - len(codec.encode(NEW)) - 100
    await store.replace(Ledger("ledger-1", "team/flights" + "x" * room), first.version)


async def test_a_round_of_reads_and_writes_costs_the_writes_alone(api: Api, place: LedgerPlace) -> None:
    async with (
        api.watch(CONFIG_MAP, place.namespace, name=NAME) as watch,
        api.watch(CONFIG_MAP, labels="app.kubernetes.io/component=ledger") as all_ledgers,
    ):
        await ConfigMapLedgerStore(api, place).create(NEW)
        driver, operator = ConfigMapLedgerStore(api, place, watch), ConfigMapLedgerStore(api, place, all_ledgers)
        for store in (driver, operator):
            await store.load()
        await until(lambda: bool(watch.get(place.namespace, NAME) and all_ledgers.get(place.namespace, NAME)))
        before = api.requests.copy()
        for _ in range(10):
            seen = await operator.load()
            assert seen is not None
            waiter = asyncio.create_task(operator.wait_changed(seen.version, 10.0))
            stored = await driver.load()
            assert stored is not None
            decided = await driver.replace(at_epoch(stored.ledger.epoch + 1), stored.version)
            assert await driver.load() == decided, "its own write is known at once"
            back = asyncio.create_task(driver.wait_changed(decided.version, 10.0))
            await waiter
            heard = await operator.load()
            assert heard == decided
            await operator.replace(at_epoch(decided.ledger.epoch + 1), decided.version)
            await back
        assert requests(api, before) == {("patch", "200"): 20}


async def test_after_a_conflict_the_server_is_asked(api: Api, place: LedgerPlace) -> None:
    async with api.watch(CONFIG_MAP, place.namespace, name=NAME) as watch:
        store = ConfigMapLedgerStore(api, place, watch)
        first = await store.create(NEW)
        second = await ConfigMapLedgerStore(api, place).replace(at_epoch(1), first.version)
        with pytest.raises(LedgerConflict):
            await store.replace(at_epoch(9), first.version)
        before = api.requests.copy()
        assert await store.load() == second
        assert requests(api, before) == {("get", "200"): 1}


async def test_a_waiter_without_news_returns_after_its_time(api: Api, place: LedgerPlace) -> None:
    async with api.watch(CONFIG_MAP, place.namespace, name=NAME) as watch:
        store = ConfigMapLedgerStore(api, place, watch)
        first = await store.create(NEW)
        await store.wait_changed(first.version, 0.05)
        await store.replace(at_epoch(1), first.version)
        await asyncio.wait_for(store.wait_changed(first.version, 20.0), 5.0)


async def lose_answer(proxied: Api, proxy: Proxy, namespace: str) -> str:
    """From now on what is sent arrives, and no answer comes back (over the connection that is open already)."""
    await proxied.get(CONFIG_MAP, namespace, "any")
    return proxy.add_toxic("limit_data", bytes=0)


async def test_a_write_whose_answer_is_lost_is_unanswered_and_has_its_effect(
    api: Api, proxied: Api, proxy: Proxy, namespace: str
) -> None:
    made = await api.create(CONFIG_MAP, namespace, {"metadata": {"name": "a"}, "data": {"k": "1"}})
    toxic = await lose_answer(proxied, proxy, namespace)
    version = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}}
    with pytest.raises(Unanswered) as caught:
        await proxied.patch(CONFIG_MAP, namespace, "a", {**version, "data": {"k": "2"}})
    assert caught.value.__cause__ is not None
    proxy.remove_toxic(toxic)
    found = await proxied.get(CONFIG_MAP, namespace, "a")
    assert found is not None
    assert found["data"] == {"k": "2"}
    toxic = await lose_answer(proxied, proxy, namespace)
    found["data"] = {"k": "3"}
    with pytest.raises(Unanswered):  # a PUT that were sent again unseen would be a conflict now
        await proxied.replace(CONFIG_MAP, namespace, found)
    with pytest.raises(Unavailable):
        await proxied.get(CONFIG_MAP, namespace, "a")
    proxy.remove_toxic(toxic)
    assert ((await api.get(CONFIG_MAP, namespace, "a")) or {})["data"] == {"k": "3"}


async def test_a_refused_connection_had_no_effect_and_a_silent_one_may(
    api: Api, proxied: Api, proxy: Proxy, namespace: str
) -> None:
    body = {"metadata": {"name": "a"}}
    proxy.disable()
    with pytest.raises(Unavailable):
        await proxied.create(CONFIG_MAP, namespace, body)
    proxy.enable()
    await proxied.get(CONFIG_MAP, namespace, "a")
    toxic = proxy.add_toxic("timeout", timeout=0)
    with pytest.raises(Unanswered, match="no answer in time"):
        await proxied.create(CONFIG_MAP, namespace, body)
    with pytest.raises(Unavailable):
        await proxied.create(CONFIG_MAP, namespace, body, dry_run=True)
    with pytest.raises(Unavailable):
        await proxied.get(CONFIG_MAP, namespace, "a")
    proxy.remove_toxic(toxic)
    assert await api.get(CONFIG_MAP, namespace, "a") is not None


async def test_the_store_tells_a_lost_answer_from_no_effect(
    api: Api, proxied: Api, proxy: Proxy, place: LedgerPlace
) -> None:
    async with proxied.watch(CONFIG_MAP, place.namespace, name=NAME) as watch:
        store = ConfigMapLedgerStore(proxied, place, watch)
        first = await store.create(NEW)
        proxy.disable()
        await until(lambda: watch.problem is not None)  # by then the open connection is known to be cut
        with pytest.raises(LedgerUnavailable):
            await store.replace(at_epoch(1), first.version)
        with pytest.raises(LedgerUnavailable):
            await store.load()
        proxy.enable()
        stored = await store.load()
        assert stored == first
        toxic = proxy.add_toxic("limit_data", bytes=0)
        with pytest.raises(AnswerLost):
            await store.replace(at_epoch(1), first.version)
        proxy.remove_toxic(toxic)
        after = await store.load()
        assert after is not None
        assert after.ledger == at_epoch(1)


def raise_token(holder: str) -> Any:
    def event(ledger: Ledger) -> Event | None:
        return None if ledger.holder == holder else RaiseToken(ledger.token + 1, holder)

    return event


async def test_a_change_whose_answer_is_lost_happens_once(
    api: Api, proxied: Api, proxy: Proxy, place: LedgerPlace
) -> None:
    store = ConfigMapLedgerStore(proxied, place)
    await store.create(NEW)
    toxic = await lose_answer(proxied, proxy, place.namespace)
    changing = asyncio.create_task(change(store, raise_token("me"), Environment.real(), 30.0))
    direct = ConfigMapLedgerStore(api, place)
    await asyncio.sleep(0.2)
    proxy.remove_toxic(toxic)
    changed = await changing
    assert changed.ledger.token == 1
    assert await direct.load() == changed


async def test_a_change_outlives_an_api_server_that_is_down_for_seconds(
    proxied: Api, control_plane: ControlPlane, place: LedgerPlace
) -> None:
    async with proxied.watch(CONFIG_MAP, place.namespace, name=NAME) as watch:
        store = ConfigMapLedgerStore(proxied, place, watch)
        first = await store.create(NEW)
        control_plane.apiserver.kill()
        changing = asyncio.create_task(change(store, raise_token("me"), Environment.real(), 60.0))
        waiting = asyncio.create_task(store.wait_changed(first.version, 60.0))
        await asyncio.sleep(1.0)
        assert not changing.done()
        await asyncio.to_thread(control_plane.start_apiserver)
        assert (await changing).ledger.token == 1
        await asyncio.wait_for(waiting, 10.0)


async def test_of_writers_through_restarts_each_change_happens_once(
    proxied: Api, control_plane: ControlPlane, place: LedgerPlace
) -> None:
    """Answers are lost wherever a killed server had got to; tokens count what really happened."""
    async with proxied.watch(CONFIG_MAP, place.namespace, name=NAME) as watch:
        store = ConfigMapLedgerStore(proxied, place, watch)
        await store.create(NEW)
        done = 0

        async def write() -> None:
            nonlocal done
            while done < 40:
                await change(store, raise_token(f"holder-{done}"), Environment.real(), 60.0)
                done += 1

        writing = asyncio.create_task(write())
        for kills in range(2):
            await until(partial(lambda wanted: done >= wanted or writing.done(), 10 * (kills + 1)))
            control_plane.apiserver.kill()
            await asyncio.to_thread(control_plane.start_apiserver)
        await asyncio.wait_for(writing, 60.0)
        last = await store.load()
        assert last is not None
        assert last.ledger.token == done == 40


async def test_a_namespace_that_is_not_there_may_come(api: Api) -> None:
    store = ConfigMapLedgerStore(api, LedgerPlace("nowhere-at-all", "flights"))
    assert await store.load() is None
    with pytest.raises(LedgerUnavailable, match=r'namespaces "nowhere-at-all" not found'):
        await store.create(NEW)


async def test_a_conflict_is_chained_to_what_the_server_said(api: Api, place: LedgerPlace) -> None:
    store = ConfigMapLedgerStore(api, place)
    await store.create(NEW)
    with pytest.raises(LedgerConflict, match="the object has been modified") as caught:
        await store.replace(at_epoch(1), "1")
    assert isinstance(caught.value.__cause__, Conflict)
