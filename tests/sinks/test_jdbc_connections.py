"""The jdbc sink over a bad network: every single answer lost once, and all of the contract over a slow, sliced line."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from sinkruntime.api import Sink
from sinkruntime.errors import TargetError
from sinkruntime.sinks.jdbc.database import Passing
from tests.servers.lost_answers import LostAnswers
from tests.servers.toxiproxy import Proxy, Toxiproxy
from tests.sinks import harness
from tests.sinks.contract import MORE, ROWS, YES
from tests.sinks.harness import Round, Staged, commit, stage
from tests.sinks.jdbc_places import MariaDBPlace, Place, make, visible
from tests.sinks.test_jdbc_staging import StagingContract
from tests.sinks.test_jdbc_xa import XaContract

pytestmark = pytest.mark.integration

#: More requests than one commit or one writer makes.
REQUESTS_MAX = 80
COMMITS_MAX = 5
KILL_SECONDS_MAX = 20.0


@pytest.fixture(params=["postgresql_place", pytest.param("mariadb_place", marks=pytest.mark.exhaustive)])
def place(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def answers(place: Any) -> Iterator[LostAnswers]:
    relay = LostAnswers(("127.0.0.1", place.server.port))
    with relay.serving():
        yield relay


@pytest.mark.parametrize("mode", ["staging", "xa"])
def test_whichever_answer_a_committer_loses_the_checkpoint_arrives_once(
    place: Any, answers: LostAnswers, mode: str
) -> None:
    lose_each_answer(place, answers, mode, lambda: None, lambda: None)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["staging", "xa"])
def test_at_whichever_request_the_server_is_killed_the_checkpoint_arrives_once(
    place: Any, answers: LostAnswers, mode: str
) -> None:
    killed = threading.Event()

    def kill() -> None:
        place.server.kill()
        killed.set()

    def start() -> None:
        assert killed.wait(KILL_SECONDS_MAX)
        killed.clear()
        place.server.start()

    lose_each_answer(place, answers, mode, kill, start)


def lose_each_answer(
    place: Any, answers: LostAnswers, mode: str, harm: Callable[[], None], heal: Callable[[], None]
) -> None:
    """Of one checkpoint's commit the first answer is lost, of the next one's the second, until there is no more."""
    sink, through = make(place, mode=mode), make(place, address=answers.address, mode=mode)
    for number in range(1, REQUESTS_MAX):
        staged = stage(sink, number, ROWS, MORE)
        answers.lose_answer(number, harm)
        made = commit(through, staged, number - 1)
        if answers.lost.total() == number:
            heal()
        commit_until_it_is_there(through, staged, number - 1, made)
        assert visible(place) == Counter((ROWS + MORE) * number)
        assert sink.evidence().checkpoint == number
        harness.clean(sink, number)
        assert place.staged() | place.prepared() == set()
        if answers.lost.total() < number:
            break
    assert answers.lost.total() in range(10, REQUESTS_MAX - 1), "each of its answers was lost once"


def commit_until_it_is_there(sink: Sink, staged: Staged, previous: int, made: Round) -> None:
    """As a coordinator does: what is unknown is asked for, what may pass is tried again."""
    for _ in range(COMMITS_MAX):
        if made.answers() <= YES and all(request.answer for request in made.aggregated):
            return
        made = commit(sink, staged, previous, may_have_landed=True)
    raise AssertionError(f"not committed: {made}")


@pytest.mark.parametrize("mode", ["staging", "xa"])
def test_whichever_answer_a_writer_loses_its_next_attempt_counts_alone(
    place: Place, answers: LostAnswers, mode: str
) -> None:
    sink, through = make(place, mode=mode), make(place, address=answers.address, mode=mode)
    for number in range(1, REQUESTS_MAX):
        answers.lose_answer(number)
        writer = harness.open_writer(through, number)
        try:
            writer.write(harness.batch_of(ROWS))
            writer.prepare_commit(number)
        except (Passing, TargetError):
            with suppress(Passing, TargetError):  # Spark's next attempt does not wait for it
                writer.abort_prepare()
        writer.close()
        kept = stage(sink, number, ROWS, attempt=1)
        assert commit(sink, kept, number - 1).answers() <= YES
        harness.clean(sink, number)
        assert visible(place) == Counter(ROWS * number)
        assert place.staged() | place.prepared() == set()
        if answers.lost.total() < number:
            break
    assert answers.lost.total() in range(5, REQUESTS_MAX - 1), "each of its answers was lost once"


@dataclass(frozen=True, slots=True)
class Slow(MariaDBPlace):
    """The same place over a slow line."""

    address: str

    def options(self, address: str = "") -> dict[str, Any]:
        return MariaDBPlace.options(self, address or self.address)


@pytest.fixture
def slow_place(mariadb_place: MariaDBPlace, toxiproxy: Toxiproxy) -> Iterator[Slow]:
    with toxiproxy.proxy(mariadb_place.server.address) as proxy:
        worsen(proxy)
        yield Slow(mariadb_place.server, mariadb_place.schema, proxy.listen)


def worsen(proxy: Proxy) -> None:
    """Answers and requests come late, at different times, and in small pieces."""
    for stream in ("upstream", "downstream"):
        proxy.add_toxic("latency", stream, latency=2, jitter=2)
        proxy.add_toxic("slicer", stream, average_size=24, size_variation=20, delay=50)


@pytest.mark.exhaustive
class TestStagingOverASlowLine(StagingContract):
    @pytest.fixture
    def place(self, slow_place: Slow) -> Place:
        return slow_place


@pytest.mark.exhaustive
class TestXaOverASlowLine(XaContract):
    @pytest.fixture
    def place(self, slow_place: Slow) -> Place:
        return slow_place
