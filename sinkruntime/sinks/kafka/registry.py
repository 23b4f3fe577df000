"""A schema registry of Confluent's kind: each Avro record begins with the number of its schema there.

The encoder asks for the number of a topic's schema, and remembers it while the process lives: a number once given never
changes, so a registry that is away stops nobody who has asked before. Two requests are all that is needed, so the
standard library makes them: the client of confluent-kafka would bring an HTTP and an OAuth library into every executor.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from functools import lru_cache
from typing import Any

from sinkruntime.errors import TargetError
from sinkruntime.sinks.kafka.options import SchemaRegistry

#: A record's first byte, before the schema's number (four bytes, the highest first).
MAGIC = b"\0"
TIMEOUT_SECONDS = 15.0
ANSWER_BYTES_MAX = 1 << 20
SAID_CHARACTERS_MAX = 300
_HERE = "options.schemaRegistry"

#: Subjects whose heads are remembered.
REMEMBERED_MAX = 4_096


@lru_cache(maxsize=REMEMBERED_MAX)
def head(options: SchemaRegistry, subject: str, schema: str) -> bytes:
    """What a record of this schema begins with. Raises `TargetError`, and `ConnectionError` for what may pass."""
    path = f"/subjects/{urllib.parse.quote(subject, safe='')}"
    if options.auto_register:
        path += "/versions"
    try:
        answer = _post(options, path, {"schema": schema})
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(error, subject) from None  # the request holds the password
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ConnectionError(f"the schema registry {options.url} was not reached: {error}") from None
    number = answer.get("id") if isinstance(answer, dict) else None
    if not isinstance(number, int) or not 0 <= number < 1 << 32:
        raise ConnectionError(f"the schema registry {options.url} gave no number of a schema")
    return MAGIC + number.to_bytes(4, "big")


class _NotFollowed(urllib.request.HTTPRedirectHandler):
    """Who is sent elsewhere would take the password there."""

    def redirect_request(self, *_: Any) -> None:
        """An error then, with the answer's own code."""


def _post(options: SchemaRegistry, path: str, body: dict[str, Any]) -> Any:
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json", "Accept": "application/json"}
    if options.username is not None and options.password is not None:
        given = f"{options.username}:{options.password.get_secret_value()}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(given).decode()}"
    request = urllib.request.Request(options.url.rstrip("/") + path, json.dumps(body).encode(), headers)
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), _NotFollowed()]
    if options.url.startswith("https:"):
        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=options.ca_file)))
    with urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT_SECONDS) as answer:
        return json.loads(answer.read(ANSWER_BYTES_MAX))


def _refused(error: urllib.error.HTTPError, subject: str) -> Exception:
    said = _said(error)
    if error.code in (401, 403):
        message = f"the schema registry does not let us in (HTTP {error.code}): {said}"
        return TargetError("PermissionDenied", message, path=_HERE, advice="see its `username` and `password`")
    if error.code == 404:
        message = f"the schema registry has no such schema under the subject {subject}: {said}"
        advice = "register the schema that the columns make, or set `schemaRegistry.autoRegister: true`"
        return TargetError("SchemaNotRegistered", message, path=_HERE, advice=advice)
    if error.code in (409, 422):
        message = f"the schema registry turns the columns' schema down for the subject {subject}: {said}"
        advice = "change the columns, or the subject's compatibility"
        return TargetError("SchemaIncompatible", message, path=_HERE, advice=advice)
    return ConnectionError(f"the schema registry answered HTTP {error.code}: {said}")


def _said(error: urllib.error.HTTPError) -> str:
    try:
        text = error.read(ANSWER_BYTES_MAX).decode(errors="replace")
    except (OSError, http.client.HTTPException) as broken:
        return f"(its words were lost: {broken})"
    return " ".join(text.split())[:SAID_CHARACTERS_MAX]
