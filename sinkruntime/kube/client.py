"""The verbs on objects of the API server: one method, one request (a list: one a page).

Called by the operator, by the driver, by the ledger store. Objects go in and out as dictionaries. It keeps no cache
(a `Watch` does) and tries nothing twice.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Self

from sinkruntime.environment import Environment
from sinkruntime.kube.errors import ApiError, Conflict, Gone, NotFound, Unanswered, Unavailable
from sinkruntime.kube.kinds import ACCESS_REVIEW, POD, SERVICE_ACCOUNT, Kind, Object
from sinkruntime.kube.settings import ApiSettings
from sinkruntime.kube.transport import MERGE_PATCH, Request, Transport
from sinkruntime.kube.watch import Watch

#: A list whose pages expire is begun again so often; pages live for minutes.
LISTS_MAX = 3

#: The class has a method `list`.
Objects = list[Object]

#: verb, kind, code ("200", "Unavailable", …), seconds.
RequestHook = Callable[[str, str, str, float], None]


class Api:
    """One per process; an async context manager.

    A call raises `ApiError`s. Reads raise `Unavailable` where writes may raise `Unanswered`, too.
    `requests` counts by (verb, kind, code), the code being "200" or the name of the error; `on_request` is called
    after each with verb, kind, code and seconds.
    """

    def __init__(self, transport: Transport, settings: ApiSettings, environment: Environment) -> None:
        self.settings = settings
        self.environment = environment
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.on_request: RequestHook | None = None
        self._transport = transport

    @classmethod
    async def connect(cls, settings: ApiSettings | None = None, environment: Environment | None = None) -> Api:
        """In a pod by its service account, else by kubeconfig. Raises `ConfigurationError` where neither is there;
        whether the server answers is seen with the first request."""
        settings = settings or ApiSettings()
        return cls(await Transport.open(settings), settings, environment or Environment.real())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all connections."""
        await self._transport.close()

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """The present object; None: there is none."""
        try:
            return await self._call("get", kind, Request("GET", kind.path(namespace, name)))
        except NotFound:
            return None

    async def list(self, kind: Kind, namespace: str = "", *, labels: str = "", name: str = "") -> tuple[Objects, str]:
        """All objects that a label selector (or one name) picks, and the resourceVersion of the list, from which a
        watch goes on. Namespace "": of all namespaces. Without `managedFields`, half of many an object."""
        selectors = _selectors(labels, name)
        for _ in range(LISTS_MAX):
            try:
                return await self._pages(kind, namespace, selectors)
            except Gone as error:
                expired = error
        raise Unavailable(f"the list expired {LISTS_MAX} times while it was read: {expired.message}") from expired

    async def _pages(self, kind: Kind, namespace: str, selectors: dict[str, str]) -> tuple[Objects, str]:
        found: Objects = []
        query = selectors | {"limit": str(self.settings.page_objects)}
        while True:
            page = await self._call("list", kind, Request("GET", kind.path(namespace), query))
            for item in page.get("items") or []:
                item["metadata"].pop("managedFields", None)
                # Items of a list do not say what they are; an object is to look the same wherever it comes from.
                found.append({"apiVersion": kind.api_version, "kind": kind.name} | item)
            metadata = page["metadata"]
            if not metadata.get("continue"):
                return found, metadata["resourceVersion"]
            query = query | {"continue": metadata["continue"]}

    async def create(self, kind: Kind, namespace: str, body: Object, *, dry_run: bool = False) -> Object:
        """The object as the server keeps it. Raises `AlreadyExists`."""
        query = _WRITER | ({"dryRun": "All"} if dry_run else {})
        request = Request("POST", kind.path(namespace), query, _whole(kind, body), writes=not dry_run)
        return await self._call("create", kind, request)

    async def replace(self, kind: Kind, namespace: str, body: Object) -> Object:
        """The object as the server keeps it; a compare-and-swap where `body` has metadata.resourceVersion, which
        raises `Conflict`."""
        path = kind.path(namespace, body["metadata"]["name"])
        return await self._call("update", kind, Request("PUT", path, _WRITER, _whole(kind, body), writes=True))

    async def patch(self, kind: Kind, namespace: str, name: str, body: Object, *, subresource: str = "") -> Object:
        """JSON merge patch (RFC 7396: None removes, lists are replaced whole); a compare-and-swap where `body` has
        metadata.resourceVersion. The answer is the object after it."""
        path = kind.path(namespace, name, subresource)
        return await self._call("patch", kind, Request("PATCH", path, _WRITER, body, MERGE_PATCH, writes=True))

    async def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str = "", grace_seconds: int | None = None
    ) -> bool:
        """True: deletion has begun (finalizers and grace may keep the object for a while). False: it was not there,
        or, where `uid` is given, another one of that name is."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            await self._call("delete", kind, Request("DELETE", kind.path(namespace, name), body=options, writes=True))
        except NotFound:
            return False
        except Conflict:
            if not uid:
                raise
            return False
        return True

    def watch(self, kind: Kind, namespace: str = "", *, labels: str = "", name: str = "") -> Watch:
        """A cache of all objects that a label selector (or one name) picks, kept up to date. Enter it to start."""

        def stream(version: str) -> AbstractAsyncContextManager[AsyncIterable[bytes]]:
            return self._stream(kind, namespace, _selectors(labels, name), version)

        return Watch(lambda: self.list(kind, namespace, labels=labels, name=name), stream, self)

    @asynccontextmanager
    async def _stream(
        self, kind: Kind, namespace: str, selectors: dict[str, str], version: str
    ) -> AsyncIterator[AsyncIterable[bytes]]:
        query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version}
        limit = self.settings.watch_seconds
        query["timeoutSeconds"] = str(limit + self.environment.random.randrange(1 + limit // 10))
        request = Request("GET", kind.path(namespace), query | selectors)
        started = self.environment.clock.monotonic()
        try:
            async with self._transport.stream(request) as lines:
                self._count("watch", kind, "200", self.environment.clock.monotonic() - started)
                yield lines
        except ApiError as error:
            self._count("watch", kind, error.reason, self.environment.clock.monotonic() - started)
            raise

    async def log_tail(self, namespace: str, pod: str, *, lines: int = 50, container: str = "") -> str:
        """The last lines of a container's log. Raises `NotFound`, and `Invalid` before the container has started."""
        query = {"tailLines": str(lines)} | ({"container": container} if container else {})
        body = await self._send("log", POD, Request("GET", POD.path(namespace, pod, "log"), query))
        return body.decode(errors="replace")

    async def token(self, namespace: str, service_account: str, *, audience: str, seconds: int) -> str:
        """A token of that service account for that audience; the server may give it another life than asked for,
        and never less than 600 s. It is a secret."""
        spec: dict[str, Any] = {"audiences": [audience] if audience else [], "expirationSeconds": seconds}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = SERVICE_ACCOUNT.path(namespace, service_account, "token")
        answer = await self._call("token", SERVICE_ACCOUNT, Request("POST", path, body=body))
        token: str = answer["status"]["token"]
        return token

    async def allowed(
        self, verb: str, kind: Kind, namespace: str = "", *, name: str = "", subresource: str = ""
    ) -> bool:
        """Whether this process may do it (a SelfSubjectAccessReview)."""
        attributes = {"verb": verb, "group": kind.group, "resource": kind.plural, "namespace": namespace}
        attributes |= {"name": name, "subresource": subresource}
        body = _whole(ACCESS_REVIEW, {"spec": {"resourceAttributes": attributes}})
        answer = await self._call("review", ACCESS_REVIEW, Request("POST", ACCESS_REVIEW.path(), body=body))
        return bool(answer["status"].get("allowed"))

    async def _call(self, verb: str, kind: Kind, request: Request) -> Object:
        answer = await self._send(verb, kind, request)
        try:
            body: Object = json.loads(answer)
        except ValueError as error:
            unclear = Unanswered if request.writes else Unavailable
            raise unclear(f"{request.what}: the answer is not JSON") from error
        return body

    async def _send(self, verb: str, kind: Kind, request: Request) -> bytes:
        started = self.environment.clock.monotonic()
        code = "cancelled"
        try:
            answer = await self._transport.send(request)
            code = "200"
        except ApiError as error:
            code = error.reason
            raise
        finally:
            self._count(verb, kind, code, self.environment.clock.monotonic() - started)
        return answer

    def _count(self, verb: str, kind: Kind, code: str, seconds: float) -> None:
        self.requests[verb, kind.name, code] += 1
        if self.on_request is not None:
            self.on_request(verb, kind.name, code, seconds)


#: Who writes, in `managedFields`: one name, so that driver and operator do not part an object between them.
_WRITER = {"fieldManager": "sinkjob"}


def _whole(kind: Kind, body: Object) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.name} | body


def _selectors(labels: str, name: str) -> dict[str, str]:
    selectors = {"labelSelector": labels} if labels else {}
    return selectors | ({"fieldSelector": f"metadata.name={name}"} if name else {})
