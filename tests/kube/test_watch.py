"""A watch on a real API server: what subscribers hear, what the cache holds, through cuts, silence and restarts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sinkruntime.kube import CONFIG_MAP, Api, ApiSettings, Object, Watch
from tests.kube.control_plane import ControlPlane
from tests.servers.toxiproxy import Proxy, Toxiproxy

WAIT_SECONDS = 20.0
QUICK = ApiSettings(request_seconds=3.0, connect_seconds=1.0, watch_silence_seconds=1.0, watch_last_wait_seconds=0.2)


class Ear:
    """What a subscriber heard: (event, name, value)."""

    def __init__(self, watch: Watch) -> None:
        self.heard: list[tuple[str, str, str]] = []
        watch.subscribe(self)

    def __call__(self, kind: str, found: Object) -> None:
        self.heard.append((kind, found["metadata"]["name"], (found.get("data") or {}).get("k", "")))

    async def hears(self, *expected: tuple[str, str, str]) -> None:
        """Waits until it has heard exactly these; forgets them."""
        await until(lambda: len(self.heard) >= len(expected))
        assert self.heard == list(expected)
        self.heard.clear()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def put(api: Api, namespace: str, name: str, value: str) -> None:
    if await api.get(CONFIG_MAP, namespace, name) is None:
        await api.create(
            CONFIG_MAP, namespace, {"metadata": {"name": name, "labels": {"x": "1"}}, "data": {"k": value}}
        )
    else:
        await api.patch(CONFIG_MAP, namespace, name, {"data": {"k": value}})


@pytest.fixture
def proxy(toxiproxy: Toxiproxy, control_plane: ControlPlane) -> Iterator[Proxy]:
    with toxiproxy.proxy(control_plane.address) as made:
        yield made


@pytest.fixture
def proxied(proxy: Proxy, control_plane: ControlPlane, runner: asyncio.Runner) -> Iterator[Api]:
    """An `Api` whose connections the test can cut."""
    kubeconfig = control_plane.kubeconfig_for(proxy.listen, name="proxied")
    made = runner.run(Api.connect(replace(QUICK, kubeconfig=str(kubeconfig))))
    yield made
    runner.run(made.close())


async def test_changes_are_heard_at_once_and_kept(api: Api, namespace: str) -> None:
    await put(api, namespace, "old", "0")
    async with api.watch(CONFIG_MAP, namespace, labels="x=1") as watch:
        assert watch.get(namespace, "old") is None, "no list yet"
        await asyncio.wait_for(watch.synced.wait(), WAIT_SECONDS)
        old = watch.get(namespace, "old")
        assert old is not None
        assert (old["kind"], old["data"]) == ("ConfigMap", {"k": "0"})
        ear = Ear(watch)
        await put(api, namespace, "a", "1")
        await put(api, namespace, "a", "2")
        await api.create(CONFIG_MAP, namespace, {"metadata": {"name": "without-the-label"}})
        await api.delete(CONFIG_MAP, namespace, "old")
        await ear.hears(("ADDED", "a", "1"), ("MODIFIED", "a", "2"), ("DELETED", "old", "0"))
        assert [one["data"] for one in watch.all()] == [{"k": "2"}]
        assert "managedFields" not in next(iter(watch.all()))["metadata"]
        assert watch.problem is None
        assert watch.age_seconds() < 5
        watch.unsubscribe(ear)
        await put(api, namespace, "a", "3")
        await until(lambda: (watch.get(namespace, "a") or {})["data"] == {"k": "3"})
        assert ear.heard == []


async def test_an_event_comes_sooner_than_people_notice(api: Api, namespace: str) -> None:
    async with api.watch(CONFIG_MAP, namespace, labels="x=1") as watch:
        await watch.synced.wait()
        ear, waits = Ear(watch), []
        for index in range(20):
            await put(api, namespace, "a", str(index))
            written = time.monotonic()
            await until(lambda: bool(ear.heard))
            ear.heard.clear()
            waits.append(time.monotonic() - written)
        assert sorted(waits)[len(waits) // 2] < 0.1


async def test_a_watch_by_name_sees_that_object_alone(api: Api, namespace: str) -> None:
    async with api.watch(CONFIG_MAP, namespace, name="a") as watch:
        ear = Ear(watch)
        await watch.synced.wait()
        await put(api, namespace, "b", "1")
        await put(api, namespace, "a", "1")
        await ear.hears(("ADDED", "a", "1"))


async def test_a_large_object_comes_through(api: Api, namespace: str) -> None:
    async with api.watch(CONFIG_MAP, namespace, labels="x=1") as watch:
        await watch.synced.wait()
        await put(api, namespace, "a", '"' * 1_000_000)  # each is two characters in JSON
        await until(lambda: watch.get(namespace, "a") is not None)
        assert len((watch.get(namespace, "a") or {})["data"]["k"]) == 1_000_000
        assert watch.problem is None


async def test_the_servers_own_time_limit_loses_nothing_and_lists_nothing(kubeconfig: Path, namespace: str) -> None:
    settings = ApiSettings(kubeconfig=str(kubeconfig), watch_seconds=1)
    async with await Api.connect(settings) as api, api.watch(CONFIG_MAP, namespace, labels="x=1") as watch:
        ear = Ear(watch)
        await watch.synced.wait()
        for index in range(12):
            await put(api, namespace, "a", str(index))
            await asyncio.sleep(0.2)
        await until(lambda: len(ear.heard) >= 12)
        assert [value for _, _, value in ear.heard] == [str(index) for index in range(12)]
        assert api.requests["watch", "ConfigMap", "200"] >= 2
        assert api.requests["list", "ConfigMap", "200"] == 1


async def test_after_a_cut_subscribers_hear_only_of_what_really_changed(
    api: Api, proxied: Api, proxy: Proxy, namespace: str
) -> None:
    for name in ("same", "changed", "deleted", "replaced"):
        await put(api, namespace, name, "1")
    async with proxied.watch(CONFIG_MAP, namespace, labels="x=1") as watch:
        await watch.synced.wait()
        ear = Ear(watch)
        proxy.disable()
        await until(lambda: watch.problem is not None)
        assert watch.get(namespace, "changed") is not None, "what was known stays"
        await put(api, namespace, "changed", "2")
        await put(api, namespace, "new", "1")
        await api.delete(CONFIG_MAP, namespace, "deleted")
        await api.delete(CONFIG_MAP, namespace, "replaced")
        await put(api, namespace, "replaced", "2")
        assert ear.heard == []
        proxy.enable()
        await until(lambda: len(ear.heard) >= 5)
        assert sorted(ear.heard) == [
            ("ADDED", "new", "1"),
            ("ADDED", "replaced", "2"),
            ("DELETED", "deleted", "1"),
            ("DELETED", "replaced", "1"),
            ("MODIFIED", "changed", "2"),
        ]
        await until(lambda: watch.problem is None)


async def test_a_stream_that_has_gone_silent_is_left(api: Api, proxied: Api, proxy: Proxy, namespace: str) -> None:
    async with proxied.watch(CONFIG_MAP, namespace, labels="x=1") as watch:
        await watch.synced.wait()
        ear = Ear(watch)
        toxic = proxy.add_toxic("timeout", timeout=0)
        await put(api, namespace, "a", "1")
        await until(lambda: watch.problem is not None)
        assert watch.age_seconds() >= QUICK.watch_silence_seconds
        assert ear.heard == []
        proxy.remove_toxic(toxic)
        await ear.hears(("ADDED", "a", "1"))
        assert watch.age_seconds() < QUICK.watch_silence_seconds


async def test_a_dead_api_server_is_waited_for_and_a_version_too_old_is_listed_again(
    proxied: Api, control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(proxied, namespace, "a", "1")
    async with proxied.watch(CONFIG_MAP, namespace, labels="x=1") as watch:
        await watch.synced.wait()
        ear = Ear(watch)
        control_plane.apiserver.kill()
        await until(lambda: watch.problem is not None)
        await asyncio.to_thread(control_plane.start_apiserver)
        await until(lambda: watch.problem is None)
        await put(proxied, namespace, "a", "2")
        await ear.hears(("MODIFIED", "a", "2"))
        assert proxied.requests["list", "ConfigMap", "Unavailable"] >= 1
        assert proxied.requests["list", "ConfigMap", "Unavailable"] < 200, "it waits between its tries"

    lists = 0
    whole = proxied.list

    async def first_from_long_ago(*arguments: object, **selectors: str) -> tuple[list[Object], str]:
        nonlocal lists
        lists += 1
        found, version = await whole(CONFIG_MAP, namespace, **selectors)
        return found, "1" if lists == 1 else version

    # The server that has just started does not remember that version: a real 410.
    monkeypatch.setattr(proxied, "list", first_from_long_ago)
    async with proxied.watch(CONFIG_MAP, namespace, labels="x=1") as watch:
        ear = Ear(watch)
        await until(lambda: lists >= 2 and watch.problem is None)
        await put(proxied, namespace, "a", "3")
        await until(lambda: len(ear.heard) >= 2)
        assert ear.heard == [("ADDED", "a", "2"), ("MODIFIED", "a", "3")]
        assert lists == 2


async def test_a_held_api_server_is_noticed(proxied: Api, control_plane: ControlPlane, namespace: str) -> None:
    async with proxied.watch(CONFIG_MAP, namespace, labels="x=1") as watch:
        await watch.synced.wait()
        ear = Ear(watch)
        control_plane.apiserver.pause()
        try:
            await until(lambda: watch.problem is not None)
            assert watch.age_seconds() >= QUICK.watch_silence_seconds
        finally:
            control_plane.apiserver.resume()
        await put(proxied, namespace, "a", "1")
        await ear.hears(("ADDED", "a", "1"))


async def test_a_subscriber_that_fails_takes_nothing_from_the_others(
    api: Api, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    def bad(kind: str, found: Object) -> None:
        raise ZeroDivisionError

    async with api.watch(CONFIG_MAP, namespace, labels="x=1") as watch:
        watch.subscribe(bad)
        ear = Ear(watch)
        await watch.synced.wait()
        with caplog.at_level(logging.ERROR):
            await put(api, namespace, "a", "1")
            await put(api, namespace, "a", "2")
            await ear.hears(("ADDED", "a", "1"), ("MODIFIED", "a", "2"))
    assert "ZeroDivisionError" in caplog.text


async def test_a_watch_without_rights_says_so_and_goes_on_when_they_come(
    api: Api, control_plane: ControlPlane, namespace: str
) -> None:
    from sinkruntime.kube import ROLE, ROLE_BINDING, SERVICE_ACCOUNT

    await api.create(SERVICE_ACCOUNT, namespace, {"metadata": {"name": "late"}})
    token = await api.token(namespace, "late", audience="", seconds=600)
    kubeconfig = control_plane.kubeconfig_for(control_plane.address, token, name="late")
    settings = replace(QUICK, kubeconfig=str(kubeconfig))
    async with await Api.connect(settings) as late, late.watch(CONFIG_MAP, namespace) as watch:
        await until(lambda: watch.problem is not None)
        assert watch.problem is not None
        assert watch.problem.reason == "Forbidden"
        assert not watch.synced.is_set()
        rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]
        await api.create(ROLE, namespace, {"metadata": {"name": "late"}, "rules": rules})
        subject = {"kind": "ServiceAccount", "name": "late", "namespace": namespace}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "late"}
        body = {"metadata": {"name": "late"}, "roleRef": role, "subjects": [subject]}
        await api.create(ROLE_BINDING, namespace, body)
        await asyncio.wait_for(watch.synced.wait(), WAIT_SECONDS)
        await until(lambda: watch.problem is not None and "cannot watch" in watch.problem.message)
        rules[0]["verbs"] = ["list", "watch"]
        await api.patch(ROLE, namespace, "late", {"rules": rules})
        await until(lambda: watch.problem is None)
