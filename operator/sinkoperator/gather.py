"""Gathers what a plan is made from: from the caches, and live from the server before anything is started or ended.

`reconcile` calls `cached` first; where the plan made of it starts, ends or tells something that cannot be taken back it
calls `live`, and plans again. So a stale cache costs a second look, and never a second driver. It writes nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sinkoperator import names, reading
from sinkoperator.job_logs import JobLogs
from sinkoperator.manifests import Read, read
from sinkoperator.observed import (
    CoordinatorFacts,
    DriverPod,
    LedgerObject,
    Missing,
    Observed,
    PlanSettings,
    Trouble,
)
from sinkoperator.world import Key, World
from sinkruntime.environment import Environment
from sinkruntime.kube import CONFIG_MAP, NAMESPACE, POD, SECRET, SINK_JOB, Api, Forbidden, Object
from sinkruntime.spec.models import SinkJobSpec
from sinkruntime.spec.source import OptionsFrom

#: Manifests and ledgers that are kept in their read form.
READ_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Kept:
    """What is known of a job in this process alone."""

    coordinator: CoordinatorFacts = CoordinatorFacts()  # noqa: RUF009  (frozen)
    refused: Trouble | None = None


@dataclass(frozen=True, slots=True)
class Gathered:
    """`observed` is what the plan reads, `body` the SinkJob that it was made of, which writes are compared with."""

    observed: Observed
    body: Object


class Gather:
    """See the module. `kept` tells what this process knows of a job."""

    def __init__(
        self, api: Api, world: World, settings: PlanSettings, environment: Environment, kept: Callable[[Key], Kept]
    ) -> None:
        self._api = api
        self._world = world
        self._settings = settings
        self._environment = environment
        self._kept = kept
        self._logs = JobLogs(api)
        self._manifests: OrderedDict[tuple[str, int], Read] = OrderedDict()
        self._ledgers: OrderedDict[tuple[str, str], LedgerObject] = OrderedDict()

    async def cached(self, key: Key) -> Gathered | None:
        """From the caches; None where there is no such SinkJob. Asked for is only a log that is not known yet, and of a
        job that is being deleted its namespace: no cache has it, and while a job drains no look may be live."""
        body = self._world.job(key)
        if body is None:
            return None
        ledger = self._world.config_maps.one(key, names.ledger_name(key[1]))
        live = _Live(terminating=await self._terminating(body))
        return await self._observed(key, body, ledger, self._world.pods.of(key), live)

    async def live(self, key: Key) -> Gathered | None:
        """From the server; None where there is no such SinkJob any more. Raises `ApiError`."""
        namespace, name = key
        body = await self._api.get(SINK_JOB, namespace, name)
        if body is None:
            self._world.forget(key)
            return None
        self._world.keep(body)
        ledger = await self._api.get(CONFIG_MAP, namespace, names.ledger_name(name))
        pods, _ = await self._api.list(POD, namespace, labels=names.selector(name))
        spec = self._manifest(body).spec
        missing, trouble = await self._missing(namespace, spec) if spec is not None else ((), None)
        return await self._observed(key, body, ledger, pods, _Live(missing, trouble, await self._terminating(body)))

    async def _observed(
        self, key: Key, body: Object, ledger: Object | None, pods: Sequence[Object], live: _Live
    ) -> Gathered:
        manifest = self._manifest(body)
        kept = self._kept(key)
        drivers = await self._drivers(body, pods, manifest.spec)
        newest = max((driver.epoch for driver in drivers), default=0)
        config_maps = self._world.config_maps.of(key)
        observed = Observed(
            job=reading.job_object(body, manifest),
            now=self._environment.clock.wall(),
            settings=self._settings,
            ledger=None if ledger is None else self._ledger(ledger),
            run_on=manifest.run_on,
            drivers=drivers,
            committers=tuple(reading.committer_pod(pod) for pod in pods if _component(pod) == names.COMMITTER),
            executors=reading.executors(pods, newest, manifest.spec),
            revisions=tuple(reading.revision(found) for found in self._world.revisions.of(key)),
            driver_configs=frozenset(_epochs(config_maps)),
            committer_configs=frozenset(_numbers(config_maps)),
            missing=live.missing,
            coordinator=kept.coordinator,
            refused=live.trouble or kept.refused,
            namespace_terminating=live.terminating,
            other_drivers=self._other_drivers(key),
        )
        return Gathered(observed, body)

    def _other_drivers(self, key: Key) -> int:
        """Counted where there is a limit only: with many jobs in a namespace nothing else in a look takes as long."""
        if not self._settings.drivers_per_namespace_max:
            return 0
        return sum(_is_live_driver(pod) for pod in self._world.pods.others(key))

    def _manifest(self, body: Object) -> Read:
        at = (body["metadata"]["uid"], body["metadata"]["generation"])
        if at not in self._manifests:
            _put(self._manifests, at, read(body))
        return self._manifests[at]

    def _ledger(self, body: Object) -> LedgerObject:
        at = (body["metadata"]["uid"], body["metadata"]["resourceVersion"])
        if at not in self._ledgers:
            _put(self._ledgers, at, reading.ledger_object(body))
        return self._ledgers[at]

    async def _drivers(self, body: Object, pods: Iterable[Object], spec: SinkJobSpec | None) -> tuple[DriverPod, ...]:
        """The driver pods; the newest, where it has failed, with the end of its log."""
        uid = body["metadata"]["uid"]
        found = {pod["metadata"]["name"]: pod for pod in pods if _component(pod) == names.DRIVER}
        drivers = {name: reading.driver_pod(pod, uid) for name, pod in found.items()}
        newest = max(drivers.values(), key=lambda driver: driver.epoch, default=None)
        if newest is not None and newest.phase == "Failed":
            tail = await self._logs.fetch(found[newest.name], names.DRIVER, spec)
            drivers[newest.name] = reading.driver_pod(found[newest.name], uid, tail)
        return tuple(drivers[name] for name in sorted(drivers))

    async def _missing(self, namespace: str, spec: SinkJobSpec) -> tuple[tuple[Missing, ...], Trouble | None]:
        """The Secrets and ConfigMaps that the manifest names and that are not there; why one cannot be asked for."""
        missing: list[Missing] = []
        present: dict[tuple[str, str], bool] = {}
        for kind, name, path in references(spec):
            if (kind, name) not in present:
                try:
                    found = await self._api.get(SECRET if kind == "Secret" else CONFIG_MAP, namespace, name)
                except Forbidden as error:
                    advice = "let the operator `get` it: see the chart's table of rights"
                    return (), Trouble("RightMissing", error.message, advice, path)
                present[kind, name] = found is not None
            if not present[kind, name]:
                missing.append(Missing(kind, name, path))
        return tuple(missing), None

    async def _terminating(self, body: Object) -> bool:
        """Whether the namespace is being deleted; asked for only where the SinkJob is."""
        if "deletionTimestamp" not in body["metadata"]:
            return False
        try:
            namespace = await self._api.get(NAMESPACE, "", body["metadata"]["namespace"])
        except Forbidden:
            return False  # then the job's own `deletionTimeout` decides
        return namespace is None or (namespace.get("status") or {}).get("phase") == "Terminating"


@dataclass(frozen=True, slots=True)
class _Live:
    """What only the server can tell."""

    missing: tuple[Missing, ...] = ()
    trouble: Trouble | None = None
    terminating: bool = False


def references(spec: SinkJobSpec) -> Iterable[tuple[str, str, str]]:
    """Each Secret and ConfigMap that the manifest names: kind, name, and the field that names it."""
    yield from _entries(spec.source.options_from, "spec.source")
    yield from _entries(spec.checkpoint.options_from, "spec.checkpoint")
    for index, sink in enumerate(spec.sinks):
        yield from _entries(sink.options_from, f"spec.sinks[{index}]")
    for index, name in enumerate(spec.deps.config_maps):
        yield "ConfigMap", name, f"spec.deps.configMaps[{index}]"


def _entries(entries: Sequence[OptionsFrom], path: str) -> Iterable[tuple[str, str, str]]:
    for index, entry in enumerate(entries):
        at = f"{path}.optionsFrom[{index}]"
        if entry.secret_ref is not None:
            yield "Secret", entry.secret_ref.name, f"{at}.secretRef.name"
        if entry.config_map_ref is not None:
            yield "ConfigMap", entry.config_map_ref.name, f"{at}.configMapRef.name"


def _component(body: Object) -> str:
    return reading.label(body, names.COMPONENT_LABEL)


def _is_live_driver(pod: Object) -> bool:
    ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return _component(pod) == names.DRIVER and not ended


def _epochs(config_maps: Iterable[Object]) -> Iterable[int]:
    for body in config_maps:
        if _component(body) == names.DRIVER:
            epoch = reading.label(body, names.EPOCH_LABEL)
            if epoch.isdecimal():
                yield int(epoch)


def _numbers(config_maps: Iterable[Object]) -> Iterable[int]:
    for body in config_maps:
        if _component(body) == names.COMMITTER:
            yield reading.committer_number(body)


def _put(kept: OrderedDict[Any, Any], key: object, value: object) -> None:
    kept[key] = value
    while len(kept) > READ_MAX:
        kept.popitem(last=False)
