"""pyiceberg's REST catalog with time limits: by itself it waits for ever.

Used by `catalog` only. Relies on one private hook of pyiceberg, whose version is pinned.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter

CONNECT_TIMEOUT_SECONDS = 5.0
READ_TIMEOUT_SECONDS = 60.0


class _Limited(HTTPAdapter):
    """Gives each request a time limit. Never repeats one: whether it is safe to do so, only the caller knows."""

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        if kwargs.get("timeout") is None:
            kwargs["timeout"] = (CONNECT_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS)
        return super().send(request, *args, **kwargs)


class _RestCatalog(RestCatalog):
    def _create_session(self) -> Session:
        session = super()._create_session()
        for prefix in ("http://", "https://"):
            session.mount(prefix, _Limited())
        return session


def open_rest(name: str, properties: dict[str, str]) -> RestCatalog:
    """Connects: the server is asked for its configuration."""
    return _RestCatalog(name, **properties)
