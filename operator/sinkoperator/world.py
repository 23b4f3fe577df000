"""What this replica knows of the cluster without asking: the SinkJobs and the objects that were made for them.

The application enters it once; Kopf's hints and the slow relist feed the SinkJobs, watches of our own the rest, with
label selectors that the server applies. A change becomes the key of a job, and nothing more. What is read here may be
old: whoever starts or ends something because of it asks the server first (`gather`). It writes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from sinkoperator import names
from sinkruntime.kube import CONFIG_MAP, CONTROLLER_REVISION, POD, SINK_JOB, Api, Kind, Object, Watch

log = logging.getLogger(__name__)

#: Namespace and name of a SinkJob.
Key = tuple[str, str]

_OURS = f"{names.MANAGED_BY_LABEL}={names.MANAGED_BY}"


def key_of(body: Object) -> Key:
    """Of a SinkJob."""
    return body["metadata"]["namespace"], body["metadata"]["name"]


def plain(body: Object) -> Object:
    """The object without what nobody reads and is large: field owners and the last applied text."""
    metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    annotations = dict(metadata.get("annotations") or {})
    annotations.pop("kubectl.kubernetes.io/last-applied-configuration", None)
    return {**body, "metadata": {**metadata, "annotations": annotations}}


def label_of(body: Object, label: str) -> str:
    """A label's value, "" where it is not there."""
    return str((body["metadata"].get("labels") or {}).get(label, ""))


class Children:
    """All objects of one kind that belong to jobs, by job; fed by a watch for each namespace."""

    def __init__(self, watches: Sequence[Watch], changed: Callable[[Key, Object], None]) -> None:
        self._watches = watches
        self._changed = changed
        self._by_job: dict[Key, dict[str, Object]] = {}
        for watch in watches:
            watch.subscribe(self._take)

    def of(self, key: Key) -> list[Object]:
        """Those of one job, in the order of their names."""
        found = self._by_job.get(key, {})
        return [found[name] for name in sorted(found)]

    def one(self, key: Key, name: str) -> Object | None:
        """One of a job's, by its name."""
        return self._by_job.get(key, {}).get(name)

    def jobs(self) -> list[Key]:
        """The jobs that have any."""
        return list(self._by_job)

    def others(self, key: Key) -> Iterable[Object]:
        """Those of all other jobs in the same namespace."""
        for other, found in self._by_job.items():
            if other[0] == key[0] and other != key:
                yield from found.values()

    async def synced(self) -> None:
        """Wait until each watch has listed once."""
        for watch in self._watches:
            await watch.synced.wait()

    def age_seconds(self) -> float:
        """For how long the watch that is worst off has heard nothing."""
        return max(watch.age_seconds() for watch in self._watches)

    def _take(self, event: str, body: Object) -> None:
        job = label_of(body, names.JOB_LABEL)
        if not job:
            return  # managed by us, and of no job: not ours after all
        key, name = (body["metadata"]["namespace"], job), body["metadata"]["name"]
        if event == "DELETED":
            found = self._by_job.get(key, {})
            found.pop(name, None)
            if not found:
                self._by_job.pop(key, None)
        else:
            self._by_job.setdefault(key, {})[name] = body
        self._changed(key, body)


class World:
    """See the module. An async context manager; `hint` is told the key of each job that may have changed."""

    def __init__(self, api: Api, namespaces: Sequence[str], hint: Callable[[Key, str], None]) -> None:
        self._api = api
        self._namespaces = tuple(namespaces) or ("",)
        self._hint = hint
        self._stack = AsyncExitStack()
        self._watches: list[Watch] = []
        self._ledger_watches: dict[str, Watch] = {}
        self._jobs: dict[Key, Object] = {}
        self._awaited: set[Key] = set()
        self.listed = asyncio.Event()  # all SinkJobs are known
        component = names.COMPONENT_LABEL
        self.pods = self._children(POD, _OURS)
        self.config_maps = self._children(
            CONFIG_MAP, f"{_OURS},{component} in ({names.LEDGER},{names.DRIVER},{names.COMMITTER})"
        )
        self.revisions = self._children(CONTROLLER_REVISION, _OURS)

    def _children(self, kind: Kind, labels: str) -> Children:
        watches = {namespace: self._api.watch(kind, namespace, labels=labels) for namespace in self._namespaces}
        self._watches += watches.values()
        if kind == CONFIG_MAP:
            self._ledger_watches = watches
        return Children(
            list(watches.values()), lambda key, body: self._hint(key, label_of(body, names.COMPONENT_LABEL))
        )

    def ledger_watch(self, namespace: str) -> Watch:
        """The watch that has the ledgers of a namespace."""
        return self._ledger_watches.get(namespace) or self._ledger_watches[""]

    async def __aenter__(self) -> Self:
        for watch in self._watches:
            await self._stack.enter_async_context(watch)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def synced(self) -> None:
        """Wait until everything has been listed once."""
        for children in (self.pods, self.config_maps, self.revisions):
            await children.synced()
        await self.listed.wait()

    def age_seconds(self) -> float:
        """For how long the watch that is worst off has heard nothing; bookmarks count."""
        return max(watch.age_seconds() for watch in self._watches)

    def ages(self) -> dict[str, Callable[[], float]]:
        """The same for each kind that is watched here."""
        children = {POD: self.pods, CONFIG_MAP: self.config_maps, CONTROLLER_REVISION: self.revisions}
        return {kind.name: each.age_seconds for kind, each in children.items()}

    def job(self, key: Key) -> Object | None:
        """The SinkJob as it was last seen."""
        return self._jobs.get(key)

    def keys(self) -> set[Key]:
        """Every job that there is, and every job that has left something behind."""
        return {*self._jobs, *self.pods.jobs(), *self.config_maps.jobs(), *self.revisions.jobs()}

    def count(self) -> int:
        """How many SinkJobs there are."""
        return len(self._jobs)

    def see(self, event: str, body: Object) -> None:
        """Take in a SinkJob as Kopf or an answer shows it. An older one than is known changes nothing."""
        key = key_of(body)
        self._awaited.discard(key)
        if event == "DELETED":
            known = self._jobs.get(key)
            if known is not None and known["metadata"]["uid"] == body["metadata"]["uid"]:
                del self._jobs[key]
        else:
            self.keep(body)
        self._hint(key, "")

    def keep(self, body: Object) -> None:
        """Take in the answer to a write of our own: no hint, for whoever wrote it knows."""
        if not self._older(body):
            self._jobs[key_of(body)] = plain(body)

    def forget(self, key: Key) -> None:
        """The server was asked, and there is no such SinkJob."""
        self._jobs.pop(key, None)

    def _older(self, body: Object) -> bool:
        """Kopf's events come late, and one's own answers early: the newer of two states of one object stays.

        Versions are compared as numbers, as API servers make them; where they are none the later word is taken.
        """
        known = self._jobs.get(key_of(body))
        if known is None or known["metadata"]["uid"] != body["metadata"]["uid"]:
            return False
        mine, given = known["metadata"]["resourceVersion"], body["metadata"]["resourceVersion"]
        return mine.isdigit() and given.isdigit() and int(given) < int(mine)

    async def relist(self) -> None:
        """List all SinkJobs and queue each, whether a hint came or not."""
        before = dict(self._jobs)
        present: dict[Key, Object] = {}
        for namespace in self._namespaces:
            found, _ = await self._api.list(SINK_JOB, namespace)
            present.update((key_of(body), body) for body in found)
        for key in [key for key in before if key not in present]:
            self.forget(key)
        for key, body in present.items():
            self.keep(body)
            self._hint(key, "")
        if self.listed.is_set():
            self._awaited = {key for key, body in present.items() if _differs(before.get(key), body)}
        self.listed.set()

    def unheard(self) -> frozenset[Key]:
        """The SinkJobs that the last relist showed to be new or changed, and of which no hint has come since."""
        return frozenset(self._awaited)


def _differs(known: Object | None, listed: Object) -> bool:
    """Whether what was known before the list is not what the list says."""
    return known is None or known["metadata"]["resourceVersion"] != listed["metadata"]["resourceVersion"]
