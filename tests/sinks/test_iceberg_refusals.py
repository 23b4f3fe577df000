"""Catalogs and tables that turn the Iceberg sink down: what is said, and what becomes of the checkpoint.

The reference REST server knows no credentials and is never overloaded, so a server before it answers for it.
"""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sinkruntime.api import Answer
from sinkruntime.errors import ConfigurationError, TargetError
from sinkruntime.sinks.iceberg import committer
from tests.servers.iceberg_rest import IcebergRest
from tests.servers.s3 import S3Server
from tests.sinks import harness
from tests.sinks.contract import MORE, ROWS
from tests.sinks.harness import OTHER_LEDGER, commit, stage
from tests.sinks.iceberg_places import Place, rest_place, s3_place, sql_place
from tests.sinks.test_iceberg_faults import foreign_append

SECRET = "s3cret-t0ken"


class Gate:
    """Hands requests on to the real server, but for those that it turns down."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.all_status = 0
        self.commit_status = 0
        self.turned_down = 0

    def status(self, method: str, path: str) -> int:
        is_commit = method == "POST" and "/tables/" in path
        return self.all_status or (self.commit_status if is_commit else 0)


@contextmanager
def gate_before(server: IcebergRest) -> Iterator[tuple[Gate, str]]:
    """The gate and its address."""
    gate = Gate(server.address)

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body, status = self.rfile.read(length), gate.status(self.command, self.path)
            answer, kind = b'{"error": {"message": "no", "type": "Refused", "code": 1}}', "application/json"
            if status:
                gate.turned_down += 1
            else:
                with closing(http.client.HTTPConnection(gate.upstream, timeout=30)) as connection:
                    headers = {key: value for key, value in self.headers.items() if key.lower() != "host"}
                    connection.request(self.command, self.path, body, headers)
                    given = connection.getresponse()
                    answer, status = given.read(), given.status
                    kind = given.headers.get("Content-Type") or kind
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer)

        do_GET = do_POST = do_HEAD = do_DELETE = _handle  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Silent."""

    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    try:
        yield gate, f"http://127.0.0.1:{served.server_port}"
    finally:
        served.shutdown()
        thread.join(10)
        served.server_close()


@pytest.fixture
def gated(iceberg_rest: IcebergRest) -> Iterator[tuple[Place, Gate]]:
    """A place whose sink goes through a gate."""
    with gate_before(iceberg_rest) as (gate, uri):
        place = rest_place(iceberg_rest, uri)
        place.make()
        yield place, gate


@pytest.mark.integration
@pytest.mark.parametrize("status", [401, 403])
def test_credentials_that_a_catalog_refuses_are_said_and_not_shown(gated: tuple[Place, Gate], status: int) -> None:
    place, gate = gated
    sink = place.sink(catalog={**place.properties, "uri": place.endpoint, "token": SECRET})
    gate.all_status = status
    with pytest.raises(TargetError, match="PermissionDenied: the catalog refuses the credentials") as caught:
        sink.prepare_target(harness.SCHEMA)
    assert caught.value.path == "options.catalog"
    assert SECRET not in str(caught.value)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("status", "answer", "reason"),
    [
        (403, Answer.REFUSED, "PermissionDenied"),
        (404, Answer.UNKNOWN, "AnswerLost"),
        (409, Answer.RETRY_LATER, "CommitConflict"),
        (429, Answer.RETRY_LATER, "CommitConflict"),
        (500, Answer.UNKNOWN, "AnswerLost"),
        (503, Answer.UNKNOWN, "AnswerLost"),
        (504, Answer.UNKNOWN, "AnswerLost"),
    ],
)
def test_what_a_catalog_says_to_a_commit_decides_what_becomes_of_it(
    gated: tuple[Place, Gate], monkeypatch: pytest.MonkeyPatch, status: int, answer: Answer, reason: str
) -> None:
    place, gate = gated
    monkeypatch.setattr(committer, "ATTEMPTS_MAX", 3)
    sink = place.sink()
    staged = stage(sink, 1, ROWS)
    gate.commit_status = status
    done = commit(sink, staged)
    assert (done.answers(), done.aggregated[0].reason) == ({answer}, reason)
    assert gate.turned_down == (3 if reason == "CommitConflict" else 1)
    assert bool(place.orphan_manifests()) == (answer is Answer.UNKNOWN)  # only what is certain is cleaned up
    gate.commit_status = 0
    assert commit(sink, staged, may_have_landed=True).answers() == {Answer.COMMITTED}
    harness.clean(sink, 1)
    assert place.rows() == Counter(ROWS)
    assert place.orphan_manifests() == set()


@pytest.mark.integration
def test_keys_that_the_store_refuses_are_said_and_not_shown(tmp_path: Path, s3_server: S3Server) -> None:
    place = s3_place(tmp_path, s3_server)
    place.make()
    sink = place.sink(catalog={**place.properties, "s3.access-key-id": "stranger", "s3.secret-access-key": SECRET})
    with pytest.raises((TargetError, OSError)) as caught:
        stage(sink, 1, ROWS)
    assert SECRET not in str(caught.value)


def test_a_tag_is_not_written_to(tmp_path: Path) -> None:
    place = sql_place(tmp_path)
    place.make()
    foreign_append(place, {"id": 0, "name": "foreign"})
    table = place.load()
    head = table.current_snapshot()
    assert head is not None
    table.manage_snapshots().create_tag(head.snapshot_id, "audit").commit()
    with pytest.raises(TargetError, match="NoBranch: `audit` is a tag"):
        place.sink(branch="audit").prepare_target(harness.SCHEMA)


@pytest.mark.parametrize("kind", ["hive", "glue"])
def test_catalogs_that_are_passed_through_say_what_they_need(tmp_path: Path, kind: str) -> None:
    catalog: dict[str, Any] = {"type": kind, "uri": "thrift://127.0.0.1:1"}
    with pytest.raises((ConfigurationError, ConnectionError)) as caught:
        sql_place(tmp_path).sink(catalog=catalog).prepare_target(harness.SCHEMA)
    assert "catalog" in str(caught.value) or "install" in str(caught.value)


def test_compaction_and_expiry_of_another_between_our_checkpoints_change_nothing(tmp_path: Path) -> None:
    place = sql_place(tmp_path)
    place.make()
    sink, staged = place.sink(), None
    other = place.sink(OTHER_LEDGER, "other", maintenance={"rewriteEvery": 1, "expireEvery": 1, "expireAge": "1ms"})
    for number in range(1, 8):
        assert commit(sink, stage(sink, number, [(number, "x")]), number - 1).answers() == {Answer.COMMITTED}
    staged = stage(sink, 8, MORE)
    other.post_commit(1, ())
    assert len(place.load().inspect.data_files()) == 1
    assert commit(sink, staged, 7).answers() == {Answer.COMMITTED}
    for number in range(1, 9):
        harness.clean(sink, number)
    assert place.rows() == Counter([*((number, "x") for number in range(1, 8)), *MORE])
