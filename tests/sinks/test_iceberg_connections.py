"""Connections to an Iceberg REST catalog that are cut, and answers that are lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sinkruntime.api import Answer
from sinkruntime.sinks.iceberg import rest
from tests.servers.iceberg_rest import IcebergRest
from tests.servers.toxiproxy import Proxy, Toxiproxy
from tests.sinks import harness
from tests.sinks.contract import ROWS
from tests.sinks.harness import commit, stage
from tests.sinks.iceberg_places import Place, rest_place
from tests.sinks.test_iceberg_faults import evidence_of

pytestmark = pytest.mark.integration


@pytest.fixture
def proxied(iceberg_rest: IcebergRest, toxiproxy: Toxiproxy) -> Iterator[tuple[Place, Proxy]]:
    """A place whose sink goes through a proxy."""
    with toxiproxy.proxy(iceberg_rest.address) as proxy:
        place = rest_place(iceberg_rest, f"http://{proxy.listen}")
        place.make()
        yield place, proxy


@contextmanager
def before_commit(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> Iterator[None]:
    """Do something when the sink is about to send its commit, the first time."""
    send, pending = rest._Limited.send, [action]

    def watched(adapter: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if request.method == "POST" and "/tables/" in request.url and pending:
            pending.pop()()
        return send(adapter, request, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(rest._Limited, "send", watched)
        yield


def test_a_lost_answer_is_unknown_and_then_found(
    proxied: tuple[Place, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    place, proxy = proxied
    sink = place.sink()
    staged = stage(sink, 1, ROWS)
    toxics: list[str] = []
    with before_commit(monkeypatch, lambda: toxics.append(proxy.add_toxic("limit_data", bytes=0))):
        made = commit(sink, staged)
    assert made.answers() == {Answer.UNKNOWN}
    assert made.reasons() == {"AnswerLost"}
    proxy.remove_toxic(toxics[0])
    assert harness.ask(sink, "probe", staged).answers() == {Answer.ALREADY_COMMITTED}
    assert commit(sink, staged, may_have_landed=True).answers() == {Answer.ALREADY_COMMITTED}
    assert place.rows() == Counter(ROWS)
    assert evidence_of(place) == Counter(["1"])


def test_a_request_that_never_arrives_is_unknown_and_then_committed(
    proxied: tuple[Place, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    place, proxy = proxied
    sink = place.sink()
    staged = stage(sink, 1, ROWS)
    toxics: list[str] = []
    with before_commit(monkeypatch, lambda: toxics.append(proxy.add_toxic("limit_data", "upstream", bytes=0))):
        made = commit(sink, staged)
    assert made.answers() == {Answer.UNKNOWN}
    proxy.remove_toxic(toxics[0])
    assert harness.ask(sink, "probe", staged).answers(Answer.COMMITTED) == {Answer.ABSENT}
    assert commit(sink, staged, may_have_landed=True).answers() == {Answer.COMMITTED}
    assert place.rows() == Counter(ROWS)


def test_a_catalog_that_is_away_is_asked_again_later(proxied: tuple[Place, Proxy]) -> None:
    place, proxy = proxied
    sink = place.sink()
    staged = stage(sink, 1, ROWS)
    proxy.disable()
    assert commit(sink, staged).answers() == {Answer.RETRY_LATER}
    assert harness.ask(sink, "probe", staged).answers(Answer.ABSENT) == {Answer.UNKNOWN}
    proxy.enable()
    assert commit(sink, staged).answers() == {Answer.COMMITTED}
    assert place.rows() == Counter(ROWS)
