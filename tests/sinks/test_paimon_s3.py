"""The paimon sink on S3 with lost answers, cut connections and racing twins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pydantic import SecretStr

from sinkruntime.api import Answer
from sinkruntime.errors import TargetError
from sinkruntime.sinks.paimon import PaimonSink
from sinkruntime.storage.s3_client import client_for
from tests.servers.paimon import PaimonPeer
from tests.servers.s3 import S3Server
from tests.servers.toxiproxy import Proxy, Toxiproxy
from tests.sinks import harness
from tests.sinks.contract import MORE, ROWS
from tests.sinks.harness import commit, stage
from tests.sinks.test_paimon import TABLE, Place, warehouse_on_s3
from tests.sinks.test_paimon_faults import prepared, rows_of, together

pytestmark = pytest.mark.integration


@pytest.fixture
def proxied(paimon_peer: PaimonPeer, s3_server: S3Server, toxiproxy: Toxiproxy) -> Iterator[tuple[Place, Proxy]]:
    """A warehouse on S3 whose sink goes through a proxy."""
    with (
        toxiproxy.proxy(s3_server.address) as proxy,
        warehouse_on_s3(paimon_peer, s3_server, f"http://{proxy.listen}") as place,
    ):
        yield place, proxy


@contextmanager
def before_snapshots(place: Place, action: Any) -> Iterator[None]:
    """Do something once, when the sink's client is about to send a snapshot."""
    events = client_for(place.sink().options.storage).meta.events
    waiting = [action]

    def handler(request: Any, **_: Any) -> None:
        if "/snapshot/snapshot-" in request.url and waiting:
            waiting.pop()()

    events.register("before-send.s3.PutObject", handler)
    yield
    events.unregister("before-send.s3.PutObject", handler)


def test_a_lost_answer_of_a_snapshot_is_unknown_and_then_found(proxied: tuple[Place, Proxy]) -> None:
    place, proxy = proxied
    sink = prepared(place)
    staged = stage(sink, 1, ROWS)
    toxics: list[str] = []
    # `100 Continue` passes, so that the body is sent; the answer to it does not.
    lose = lambda: toxics.append(proxy.add_toxic("limit_data", bytes=len("HTTP/1.1 100 Continue\r\n\r\n") + 1))  # noqa: E731
    with before_snapshots(place, lose):
        made = commit(sink, staged)
    assert made.answers() == {Answer.UNKNOWN}
    assert made.reasons() == {"AnswerLost"}
    proxy.remove_toxic(toxics[0])
    assert harness.ask(sink, "probe", staged).answers() == {Answer.ALREADY_COMMITTED}
    assert commit(sink, staged, may_have_landed=True).answers() == {Answer.ALREADY_COMMITTED}
    harness.clean(sink, 1)
    assert commit(sink, stage(sink, 2, MORE), 1).answers() == {Answer.COMMITTED}
    assert rows_of(place) == Counter(ROWS + MORE)
    assert place.peer.leftovers(place.folder, TABLE) == set()


def test_a_connection_that_is_cut_while_a_snapshot_is_made_commits_it_once(proxied: tuple[Place, Proxy]) -> None:
    place, proxy = proxied
    sink = prepared(place)

    def cut() -> None:
        proxy.disable()
        proxy.enable()

    with before_snapshots(place, cut):
        assert commit(sink, stage(sink, 1, ROWS)).answers() == {Answer.COMMITTED}
    assert rows_of(place) == Counter(ROWS)
    assert len(place.snapshots()) == 1


def test_a_server_that_is_away_is_asked_again_later(proxied: tuple[Place, Proxy]) -> None:
    place, proxy = proxied
    sink = prepared(place)
    staged = stage(sink, 1, ROWS)
    proxy.disable()
    assert commit(sink, staged).answers() == {Answer.RETRY_LATER}
    proxy.enable()
    assert commit(sink, staged).answers() == {Answer.COMMITTED}


def test_twins_racing_on_s3_never_commit_twice(proxied: tuple[Place, Proxy]) -> None:
    place, _ = proxied
    sink = prepared(place)
    for checkpoint in range(1, 9):
        staged = stage(sink, checkpoint, [(checkpoint, "x")])
        made: list[harness.Round] = []
        twin = lambda: made.append(commit(sink, staged, checkpoint - 1, may_have_landed=True))  # noqa: B023, E731
        together(twin, twin)
        assert [found.aggregated[0].answer for found in made].count(Answer.COMMITTED) == 1
    assert rows_of(place) == Counter((number, "x") for number in range(1, 9))
    assert place.peer.leftovers(place.folder, TABLE) == set()


def test_a_missing_bucket_or_a_wrong_key_is_said_by_name(proxied: tuple[Place, Proxy]) -> None:
    place, _ = proxied
    with pytest.raises(TargetError, match=r"options.catalog.warehouse: BucketMissing"):
        prepared(place, catalog={"warehouse": "s3://no-such-bucket/x"})
    sink = place.sink()
    storage = sink.options.storage.model_copy(update={"secret_key": SecretStr("wrong-secret")})
    stranger = PaimonSink(sink.options.model_copy(update={"storage": storage}), harness.identity())
    with pytest.raises(TargetError, match="PermissionDenied") as caught:
        stranger.prepare_target(harness.SCHEMA)
    assert "wrong-secret" not in str(caught.value)
