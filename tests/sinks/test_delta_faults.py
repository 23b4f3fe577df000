"""The delta sink when things go wrong: racing and killed committers, lost answers, other writers, tables made anew."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from deltalake import DeltaTable
from deltalake.table import TableMerger

from sinkruntime.api import Answer, Sink
from sinkruntime.sinks.delta import committer, table
from sinkruntime.sinks.delta.committer import order_number
from sinkruntime.sinks.delta.table import app_id
from tests.servers.s3 import S3Server
from tests.servers.toxiproxy import Proxy, Toxiproxy
from tests.sinks import harness
from tests.sinks.contract import MORE, ROWS, YES
from tests.sinks.harness import LEDGER, Row, commit, stage
from tests.sinks.test_delta import Place, append_theirs, ready, rows_of, s3_place

RACES = 25
RACES_ON_S3 = 10
#: Rows of which no two have one key.
DISTINCT: list[Row] = [(1, "one"), (2, None), (4, "")]
#: How long an answer is on its way: long enough to be lost.
ANSWER_MILLISECONDS = 400
WRITES: tuple[dict[str, Any], ...] = (
    {"write": "append"},
    {"write": "complete"},
    {"write": "upsert", "key": ["id"], "orderBy": ["name"]},
)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "table", str(tmp_path / "table"), {})


def commits_of(place: Place) -> list[int]:
    """The checkpoints of which the log has evidence, in its order."""
    return [checkpoint for _, checkpoint in place.versions(f"sinkjob/{LEDGER}/lake")]


def race(place: Place, races: int, **more: Any) -> None:
    """Two committers start on one checkpoint at the same moment, again and again, each on its own handles."""
    sinks = [ready(place, **more), ready(place, **more)]
    for checkpoint in range(1, races + 1):
        staged = stage(sinks[0], checkpoint, [(checkpoint, "row")])
        gate = threading.Barrier(2)
        answers: list[set[Answer]] = []

        def run(sink: Sink, staged: harness.Staged = staged, gate: Any = gate, answers: Any = answers) -> None:
            gate.wait(10)
            answers.append(commit(sink, staged, staged.checkpoint - 1, may_have_landed=True).answers())

        threads = [threading.Thread(target=run, args=(sink,)) for sink in sinks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(answers) == 2
        assert all(found <= YES for found in answers), answers
    assert commits_of(place) == list(range(1, races + 1))


@pytest.mark.parametrize("more", WRITES, ids=lambda more: more["write"])
def test_zombies_racing_on_a_checkpoint_never_commit_it_twice(place: Place, more: dict[str, Any]) -> None:
    race(place, RACES, **more)
    kept = [RACES] if more["write"] == "complete" else range(1, RACES + 1)
    assert rows_of(place) == Counter((number, "row") for number in kept)


@pytest.mark.integration
def test_zombies_racing_on_s3_never_commit_it_twice(s3_server: S3Server) -> None:
    place = s3_place(s3_server, s3_server.endpoint)
    race(place, RACES_ON_S3)
    assert rows_of(place) == Counter((number, "row") for number in range(1, RACES_ON_S3 + 1))


def die_around(how: Literal["before", "after"]) -> None:
    """In this process, the next write to the log is its last act."""
    method = "create_write_transaction"
    write = getattr(DeltaTable, method)

    def last_act(self: DeltaTable, *args: Any, **more: Any) -> None:
        if how == "after":
            write(self, *args, **more)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(DeltaTable, method, last_act)


def commit_and_die(sink: Sink, staged: harness.Staged, how: Literal["before", "after"]) -> None:
    die_around(how)
    commit(sink, staged)


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_killed_committer_leaves_all_or_nothing_and_the_next_one_ends_it(
    place: Place, how: Literal["before", "after"]
) -> None:
    sink = ready(place)
    staged = stage(sink, 1, ROWS, MORE)
    process = multiprocessing.get_context("spawn").Process(target=commit_and_die, args=(sink, staged, how))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    landed = how == "after"
    assert rows_of(place) == (Counter(ROWS + MORE) if landed else Counter())
    assert harness.ask(sink, "probe", staged).answers() == {Answer.ALREADY_COMMITTED if landed else Answer.ABSENT}
    assert commit(sink, staged, may_have_landed=True).answers() <= YES
    assert rows_of(place) == Counter(ROWS + MORE)
    assert commits_of(place) == [1]


@pytest.fixture
def proxied(s3_server: S3Server, toxiproxy: Toxiproxy) -> Iterator[tuple[Place, Proxy]]:
    """A place whose sink goes through a proxy."""
    with toxiproxy.proxy(s3_server.address) as proxy:
        yield s3_place(s3_server, f"http://{proxy.listen}"), proxy


def before_next_write(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Do something once, between the look at the evidence and the write to the log."""
    write, waiting = DeltaTable.create_write_transaction, [action]

    def wrapped(self: DeltaTable, *args: Any, **more: Any) -> None:
        while waiting:
            waiting.pop()()
        write(self, *args, **more)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", wrapped)


@pytest.mark.integration
@pytest.mark.parametrize("away", [True, False], ids=["and the store is away", "and the store answers again"])
@pytest.mark.parametrize("more", [WRITES[0], WRITES[2]], ids=lambda more: more["write"])
def test_a_commit_whose_answer_is_lost_is_found_and_never_doubled(
    proxied: tuple[Place, Proxy], monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], away: bool
) -> None:
    place, proxy = proxied
    sink = ready(place, **more)
    staged = stage(sink, 1, DISTINCT)
    version = place.directory / "_delta_log" / f"{1:020d}.json"
    writer: Any = TableMerger if more["write"] == "upsert" else DeltaTable
    name = "execute" if more["write"] == "upsert" else "create_write_transaction"
    write = getattr(writer, name)

    def cut() -> None:
        """As soon as the server has the version, and before its answer has come through."""
        for _ in range(1_000):
            if version.exists():
                break
            time.sleep(0.01)
        proxy.disable()
        if not away:
            proxy.enable()

    def lose_answer(self: Any, *args: Any, **told: Any) -> None:
        toxic = proxy.add_toxic("latency", latency=ANSWER_MILLISECONDS)
        cutting = threading.Thread(target=cut)
        cutting.start()
        try:
            write(self, *args, **told)
        finally:
            cutting.join()
            proxy.remove_toxic(toxic)

    with monkeypatch.context() as patched:
        patched.setattr(writer, name, lose_answer)
        made = commit(sink, staged)
    assert rows_of(place) == Counter(DISTINCT), "the server has it"
    if away:
        assert (made.answers(), made.reasons()) == ({Answer.UNKNOWN}, {"AnswerLost"})
        proxy.enable()
    else:
        assert made.answers() == {Answer.COMMITTED}
    assert harness.ask(sink, "probe", staged).answers() == {Answer.ALREADY_COMMITTED}
    assert commit(sink, staged, may_have_landed=True).answers() == {Answer.ALREADY_COMMITTED}
    assert commit(sink, stage(sink, 2, MORE), 1).answers() == {Answer.COMMITTED}
    assert rows_of(place) == Counter(DISTINCT + MORE)
    assert commits_of(place) == [1, 2]


@pytest.mark.integration
def test_a_store_that_is_away_is_asked_again_later(proxied: tuple[Place, Proxy]) -> None:
    place, proxy = proxied
    sink = ready(place)
    staged = stage(sink, 1, ROWS)
    made_for = sink.create_aggregated_committer()
    assert made_for is not None
    made_for.open()
    proxy.disable()
    made = harness.requests_for(sink, staged)
    made_for.commit(made.aggregated)
    assert made.answers() == {Answer.RETRY_LATER}
    proxy.enable()
    assert commit(sink, staged, may_have_landed=True).answers() == {Answer.COMMITTED}
    assert rows_of(place) == Counter(ROWS)


def test_another_writer_may_be_first_and_the_evidence_is_read_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = ready(place)
    staged = stage(sink, 1, ROWS)
    before_next_write(monkeypatch, lambda: append_theirs(place))
    assert commit(sink, staged).answers() == {Answer.COMMITTED}
    assert rows_of(place) == Counter([*ROWS, (77, "theirs")])


def test_a_twin_that_commits_between_look_and_write_makes_it_already_committed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, twin = ready(place), ready(place)
    staged = stage(sink, 1, ROWS)
    before_next_write(monkeypatch, lambda: commit(twin, staged))
    assert commit(sink, staged).answers() <= YES
    assert rows_of(place) == Counter(ROWS)
    assert commits_of(place) == [1]


def test_changes_that_a_twin_has_merged_since_the_look_are_not_called_lost(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, twin = ready(place, **WRITES[2]), ready(place, **WRITES[2])
    staged = stage(sink, 1, MORE)
    check, waiting = table.check_features, [staged]

    def overtaken(*args: Any) -> None:
        while waiting:
            assert commit(twin, waiting.pop()).answers() == {Answer.COMMITTED}
        check(*args)

    monkeypatch.setattr(committer, "check_features", overtaken)
    assert commit(sink, staged).answers() == {Answer.ALREADY_COMMITTED}
    assert rows_of(place) == Counter(MORE)


def test_a_fence_between_look_and_write_turns_the_commit_down(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = ready(place)
    staged = stage(sink, 1, ROWS)
    late = harness.next_order()
    before_next_write(monkeypatch, lambda: harness.ask(ready(place), "fence", staged))
    made = commit(sink, staged, order=late)
    assert (made.answers(), made.reasons()) == ({Answer.REFUSED}, {"Fenced"})
    assert rows_of(place) == Counter()


def test_writers_that_always_win_are_waited_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = ready(place)
    staged = stage(sink, 1, ROWS)
    write = DeltaTable.create_write_transaction

    def overtaken(self: DeltaTable, *args: Any, **more: Any) -> None:
        append_theirs(place)
        write(self, *args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", overtaken)
        made = commit(sink, staged)
    assert (made.answers(), made.reasons()) == ({Answer.RETRY_LATER}, {"Conflict"})
    assert commit(sink, staged).answers() == {Answer.COMMITTED}
    assert rows_of(place)[(1, "one")] == 1


@pytest.mark.parametrize("more", [WRITES[0], WRITES[2]], ids=lambda more: more["write"])
def test_recovery_finds_attempts_that_came_after_the_clean_up(place: Place, more: dict[str, Any]) -> None:
    sink = ready(place, **more)
    for checkpoint, rows in ((1, [(1, "one")]), (2, MORE)):
        commit(sink, stage(sink, checkpoint, rows), checkpoint - 1)
        harness.clean(sink, checkpoint)
    pending = stage(sink, 3, [(3, "three")])
    before = place.unnamed()
    stage(sink, 1, [(1, "late")], attempt=1)
    stage(sink, 2, MORE, attempt=1)
    harness.recover(sink, harness.garbage(epoch=2, firsts=[1, 4], unsettled=[3]))
    assert place.unnamed() == before
    assert commit(sink, pending, 2).answers() == {Answer.COMMITTED}
    assert rows_of(place) == Counter([(1, "one"), *MORE, (3, "three")])


def test_complete_replaces_and_an_empty_checkpoint_empties(place: Place) -> None:
    sink = ready(place, write="complete")
    for checkpoint, rows in ((1, ROWS), (2, MORE), (3, [])):
        assert commit(sink, stage(sink, checkpoint, rows), checkpoint - 1).answers() == {Answer.COMMITTED}
        assert rows_of(place) == Counter(rows)
    assert commit(sink, stage(sink, 2, MORE), 1).answers() == {Answer.ALREADY_COMMITTED}
    assert rows_of(place) == Counter()
    assert commits_of(place) == [1, 2, 3]


def test_evidence_is_what_sparks_idempotent_writes_use(place: Place) -> None:
    sink = ready(place)
    commit(sink, stage(sink, 4, ROWS))
    found = DeltaTable(place.path)
    assert found.transaction_version(app_id(sink.identity)) == 4
    assert found.history(1)[0]["sinkjob"]["checkpoint"] == 4


def test_orders_are_compared_tenure_first_and_fit_a_transaction() -> None:
    numbers = [order_number(order) for order in ((0, 0), (0, 7), (0, 1 << 40), (1, 0), (1, 1), ((1 << 31) - 1, 9))]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == len(numbers)
    assert numbers[-1] < 1 << 63
