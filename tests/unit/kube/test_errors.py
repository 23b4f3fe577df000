"""Each HTTP answer has one name, which says whether the request can have had an effect."""

from __future__ import annotations

import json

import pytest

from sinkruntime.kube import (
    CONFIG_MAP,
    LEASE,
    NAMESPACE,
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Unanswered,
    Unavailable,
)
from sinkruntime.kube.errors import MESSAGE_CHARACTERS_MAX, RETRY_AFTER_SECONDS_MAX, translate


def status(reason: str = "", **details: object) -> bytes:
    return json.dumps({"kind": "Status", "message": "said", "reason": reason, "details": details}).encode()


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize(
    ("code", "body", "expected"),
    [
        (400, status("BadRequest"), Invalid),
        (401, status("Unauthorized"), Unavailable),
        (403, status("Forbidden"), Forbidden),
        (404, status("NotFound"), NotFound),
        (404, b"404 page not found", NotFound),
        (405, status("MethodNotAllowed"), Invalid),
        (409, status("AlreadyExists"), AlreadyExists),
        (409, status("Conflict"), Conflict),
        (409, b"", Conflict),
        (410, status("Expired"), Gone),
        (413, status("RequestEntityTooLarge"), Invalid),
        (415, status("UnsupportedMediaType"), Invalid),
        (422, status("Invalid"), Invalid),
        (429, status("TooManyRequests"), Unavailable),
        (429, b"", Unavailable),
        (503, status("ServiceUnavailable"), Unavailable),
    ],
)
def test_an_answer_that_tells_is_definite(code: int, body: bytes, expected: type[ApiError], writes: bool) -> None:
    error = translate(code, body, {}, "PATCH /x", writes=writes)
    assert type(error) is expected
    assert (error.code, error.reason) == (code, expected.__name__)
    assert error.message.startswith("PATCH /x: ")


@pytest.mark.parametrize(
    ("code", "body"), [(500, status("InternalError")), (502, b"<html>"), (503, b"<html>"), (504, status("Timeout"))]
)
def test_an_answer_that_does_not_tell_leaves_a_write_open(code: int, body: bytes) -> None:
    assert type(translate(code, body, {}, "PATCH /x", writes=True)) is Unanswered
    assert type(translate(code, body, {}, "GET /x", writes=False)) is Unavailable


@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        ({"Retry-After": "7"}, b"", 7.0),
        ({}, status("TooManyRequests", retryAfterSeconds=3), 3.0),
        ({"Retry-After": "100000"}, b"", RETRY_AFTER_SECONDS_MAX),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, b"", 0.0),
        ({}, b"", 0.0),
        ({}, status("TooManyRequests", retryAfterSeconds=None), 0.0),
    ],
)
def test_the_pause_that_the_server_asks_for_is_bounded(headers: dict[str, str], body: bytes, seconds: float) -> None:
    error = translate(429, body, headers, "GET /x", writes=False)
    assert isinstance(error, Unavailable)
    assert error.retry_after_seconds == seconds


def test_the_servers_message_and_causes_are_kept_and_bounded() -> None:
    body = {"kind": "Status", "message": "m" * 5000, "details": {"causes": [{"field": "spec.a", "message": "is bad"}]}}
    error = translate(422, json.dumps(body).encode(), {}, "POST /x", writes=True)
    assert error.causes == [("spec.a", "is bad")]
    assert len(error.message) <= MESSAGE_CHARACTERS_MAX + len("POST /x: ")
    assert translate(502, b"bad\xff gateway", {}, "GET /x", writes=False).message == "GET /x: bad\ufffd gateway"
    assert translate(502, b"", {}, "GET /x", writes=False).message == "GET /x: HTTP 502"
    assert translate(404, b'["no status"]', {}, "GET /x", writes=False).causes == []


def test_every_error_says_in_its_reason_what_its_class_does() -> None:
    for each in (NotFound, AlreadyExists, Conflict, Forbidden, Invalid, Gone, Unavailable, Unanswered):
        assert each("x").reason == each.__name__
        assert each("x").causes == []


def test_paths_are_those_of_the_api() -> None:
    assert CONFIG_MAP.path() == "/api/v1/configmaps"
    assert CONFIG_MAP.path("team", "a", "status") == "/api/v1/namespaces/team/configmaps/a/status"
    assert LEASE.path("team") == "/apis/coordination.k8s.io/v1/namespaces/team/leases"
    assert NAMESPACE.path("", "team") == "/api/v1/namespaces/team"
    assert CONFIG_MAP.path("a/b", "..?x=y") == "/api/v1/namespaces/a%2Fb/configmaps/..%3Fx%3Dy"
    assert (LEASE.group, CONFIG_MAP.group) == ("coordination.k8s.io", "")
