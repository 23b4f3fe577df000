"""One request to the API server: address, credentials, time limits, and the errors of the connection.

Used by `client` alone. The only module that imports the client library, and only inside functions: it is an extra.
Configuration and credentials are the library's; its model objects are not used, they cost memory. It repeats nothing.
"""

from __future__ import annotations

import io
import json
import os
import urllib.request
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from sinkruntime.errors import ConfigurationError
from sinkruntime.kube.errors import Unanswered, Unavailable, translate
from sinkruntime.kube.settings import ApiSettings

if TYPE_CHECKING:
    import aiohttp
    from kubernetes.aio.client.configuration import Configuration
    from kubernetes.aio.client.rest import RESTClientObject

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `writes`: it can have an effect, so a lost answer leaves it open whether it had."""

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    body: Any = None
    content_type: str = JSON
    writes: bool = False

    @property
    def what(self) -> str:
        """For messages."""
        return f"{self.method} {self.path}"


class Transport:
    """One connection pool."""

    def __init__(self, rest: RESTClientObject, settings: ApiSettings) -> None:
        import aiohttp

        self._rest = rest
        self._limits = aiohttp.ClientTimeout(total=settings.request_seconds, sock_connect=settings.connect_seconds)
        self._stream_limits = aiohttp.ClientTimeout(
            total=None, sock_connect=settings.connect_seconds, sock_read=settings.watch_silence_seconds
        )

    @classmethod
    async def open(cls, settings: ApiSettings) -> Transport:
        """Read the configuration; connects with the first request. Raises `ConfigurationError`."""
        return cls(_rest_client(await _configuration(settings), settings), settings)

    async def close(self) -> None:
        """End all connections."""
        await self._rest.close()

    async def send(self, request: Request) -> bytes:
        """The answer's body. Raises `ApiError`s."""
        with _translated(request):
            response = await self._start(request, self._limits)
            async with response:
                body = await response.read()
        if response.status >= 400:
            raise translate(response.status, body, response.headers, request.what, writes=request.writes)
        return body

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterable[bytes]]:
        """The lines of an answer that goes on; raises `Unavailable` after `watch_silence_seconds` without one."""
        with _translated(request):
            response = await self._start(request, self._stream_limits)
            async with response:
                if response.status >= 400:
                    body = await response.read()
                    raise translate(response.status, body, response.headers, request.what, writes=False)
                yield response.content

    async def _start(self, request: Request, limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        rest, configuration = self._rest, self._rest.configuration
        headers = {"Accept": JSON, "User-Agent": "sinkjob"}
        # The library reads a pod's token again each minute, for it is replaced while the process runs.
        token = (await configuration.auth_settings()).get("BearerToken")
        if token is not None:
            headers[token["key"]] = token["value"]
        data = None
        if request.body is not None:
            headers["Content-Type"] = request.content_type
            data = io.BytesIO(json.dumps(request.body, separators=(",", ":")).encode())
        if rest.pool_manager is None:
            rest.pool_manager = rest._create_pool_manager()  # here, because it belongs to the running loop
        url = configuration.host + request.path + ("?" + urlencode(request.query) if request.query else "")
        name = {"server_hostname": configuration.tls_server_name} if configuration.tls_server_name else {}
        return await rest.pool_manager.request(
            request.method, url, headers=headers, data=data, timeout=limits, proxy=rest.proxy, **name
        )


@contextmanager
def _translated(request: Request) -> Iterator[None]:
    """Turn the errors of connections into ours: was it sent?"""
    import aiohttp

    try:
        yield
    except (OSError, aiohttp.ClientError, ValueError) as error:  # time limits are OSErrors; ValueError: no HTTP
        never_sent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
        text = f"{request.what}: {str(error) or 'no answer in time'}"
        if never_sent or not request.writes:
            raise Unavailable(text, "is the API server reachable?") from error
        raise Unanswered(text) from error


async def _configuration(settings: ApiSettings) -> Configuration:
    from kubernetes.aio import config
    from kubernetes.aio.client.configuration import Configuration

    configuration = Configuration()
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and not settings.kubeconfig and not settings.context
    files = settings.kubeconfig or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    try:
        if in_pod:
            config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        else:
            load = config.load_kube_config
            await load(files, settings.context or None, configuration, persist_config=False)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError, ValueError, KeyError, TypeError) as error:
        where = "the pod's service account" if in_pod else files
        raise ConfigurationError(
            "NoCluster", f"{where} does not say how to reach a cluster: {error}", advice="set KUBECONFIG"
        ) from error
    # Certificates of many clusters lack what Python 3.13 began to ask for; no other client asks for it.
    configuration.disable_strict_ssl_verification = True
    _set_proxy(configuration)
    return configuration


def _set_proxy(configuration: Configuration) -> None:
    """The environment's proxy, as other clients take it; never for a loopback address."""
    parts = urlsplit(configuration.host)
    host = parts.hostname or ""
    if configuration.proxy or host in ("localhost", "::1") or host.startswith("127."):
        return
    proxies = urllib.request.getproxies_environment()
    if not urllib.request.proxy_bypass_environment(host, proxies):  # type: ignore[attr-defined]
        configuration.proxy = proxies.get(parts.scheme)


def _rest_client(configuration: Configuration, settings: ApiSettings) -> RESTClientObject:
    """The library's connections: its TLS and its pool. Its requests are not used: they warn of large bodies."""
    import aiohttp
    from kubernetes.aio.client.rest import RESTClientObject

    class RestClient(RESTClientObject):
        def _create_connector(self) -> aiohttp.TCPConnector:
            return aiohttp.TCPConnector(
                limit=self.maxsize, ssl=self.ssl_context, keepalive_timeout=settings.idle_seconds
            )

        def _create_pool_manager(self) -> aiohttp.ClientSession:
            session = super()._create_pool_manager()
            # A PUT whose connection broke would be sent again unseen, and the second one's conflict would hide
            # that the first one won.
            session._retry_connection = False
            return session

    # With `trust_env` it looks for a netrc file in a thread before each request.
    configuration.client_session_kwargs = {"trust_env": False}
    return RestClient(configuration)
