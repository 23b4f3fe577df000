"""The `hive` sink when things go wrong: lost answers, a metastore that is away, twins, tables that others change."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sinkruntime.api import Answer
from sinkruntime.errors import TargetError
from sinkruntime.sinks.hive.committer import HiveAggregatedCommitter
from tests.servers.hive_metastore import Metastore
from tests.servers.s3 import S3Server
from tests.servers.toxiproxy import Proxy, Toxiproxy
from tests.sinks import harness
from tests.sinks.contract import MORE, ROWS, YES, commit_writers_only
from tests.sinks.harness import commit, stage
from tests.sinks.hive_place import Place, on_s3

pytestmark = pytest.mark.integration

RACES = 25


def make(server: Metastore, database: str, uri: str = "", **settings: Any) -> Place:
    place = Place(server, database, settings, uri or server.uri)
    place.sink().prepare_target(harness.SCHEMA)
    return place


@pytest.fixture
def place(hive_metastore: Metastore, hive_database: str) -> Place:
    """A table partitioned by `id`."""
    return make(hive_metastore, hive_database, partitionBy=["id"])


@pytest.fixture
def proxied(hive_metastore: Metastore, hive_database: str, toxiproxy: Toxiproxy) -> Iterator[tuple[Place, Proxy]]:
    """The same; the sink goes through a proxy."""
    with toxiproxy.proxy(hive_metastore.address) as proxy:
        yield make(hive_metastore, hive_database, f"thrift://{proxy.listen}", partitionBy=["id"]), proxy


def before(monkeypatch: pytest.MonkeyPatch, call: str, action: Callable[[], object]) -> None:
    """Do something once, just before the sink's client sends this call."""
    from hive_metastore import ThriftHiveMetastore

    client = ThriftHiveMetastore.Client
    send = getattr(client, f"send_{call}")

    def sending(self: Any, *arguments: Any) -> Any:
        monkeypatch.setattr(client, f"send_{call}", send)
        action()
        return send(self, *arguments)

    monkeypatch.setattr(client, f"send_{call}", sending)


def test_a_lost_answer_of_added_partitions_is_unknown_and_they_are_added_once(
    proxied: tuple[Place, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, proxy = proxied
    sink = place.sink()
    staged = stage(sink, 1, ROWS)
    toxics: list[str] = []
    before(monkeypatch, "add_partitions_req", lambda: toxics.append(proxy.add_toxic("limit_data", bytes=0)))
    made = commit(sink, staged)
    assert [request.answer for request in made.aggregated] == [Answer.UNKNOWN]
    assert made.reasons() == {"AnswerLost"}
    proxy.remove_toxic(toxics[0])
    assert len(place.partitions()) == 4  # it had landed
    assert {request.answer for request in harness.ask(sink, "probe", staged).aggregated} == {Answer.ABSENT}
    assert commit(sink, staged, may_have_landed=True).answers() <= YES
    assert place.rows() == Counter(ROWS)
    assert len(place.partitions()) == 4


@pytest.mark.parametrize("call", ["get_table_req", "get_partitions_by_names"])
def test_a_lost_answer_to_a_question_changes_nothing(
    proxied: tuple[Place, Proxy], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    place, proxy = proxied
    sink = place.sink()
    staged = stage(sink, 1, ROWS)
    toxics: list[str] = []
    before(monkeypatch, call, lambda: toxics.append(proxy.add_toxic("limit_data", bytes=0)))
    made = commit(sink, staged)
    assert made.answers() == {Answer.RETRY_LATER}
    assert made.reasons() == {"MetastoreUnreachable"}
    proxy.remove_toxic(toxics[0])
    assert place.rows() == Counter()
    assert commit(sink, staged).answers() == {Answer.COMMITTED}


def test_a_metastore_that_is_away_is_asked_again_later(proxied: tuple[Place, Proxy]) -> None:
    place, proxy = proxied
    sink = place.sink()
    staged = stage(sink, 1, ROWS)
    proxy.disable()
    made = commit(sink, staged)
    assert made.answers() == {Answer.RETRY_LATER}
    assert made.reasons() == {"MetastoreUnreachable"}
    with pytest.raises(ConnectionError):
        sink.evidence()
    with pytest.raises(ConnectionError):
        sink.prepare_target(harness.SCHEMA)
    proxy.enable()
    assert commit(sink, staged).answers() == {Answer.COMMITTED}
    assert place.rows() == Counter(ROWS)


def test_a_crash_before_the_evidence_is_taken_up(place: Place) -> None:
    sink = place.sink()
    staged = stage(sink, 1, ROWS)
    commit_writers_only(sink, staged)
    (request,) = harness.requests_for(sink, staged).aggregated
    aggregated = sink.create_aggregated_committer()
    assert isinstance(aggregated, HiveAggregatedCommitter)
    with aggregated._target() as target:
        aggregated.publish(target, request.committable)
    former = place.partitions()
    made = commit(sink, staged, may_have_landed=True)
    assert made.aggregated[0].answer is Answer.COMMITTED
    assert place.partitions() == former
    assert place.rows() == Counter(ROWS)


def race(place: Place, rounds: int) -> None:
    """In each round two committers, each with both tiers, are given one checkpoint."""
    sink = place.sink()
    passing: Counter[str] = Counter()
    for checkpoint in range(1, rounds + 1):
        staged = stage(sink, checkpoint, [(checkpoint % 3, str(checkpoint))], [(checkpoint, "one")])
        made: list[harness.Round] = []
        ended: list[harness.Round] = []
        barrier = threading.Barrier(2)

        def run(
            checkpoint: int = checkpoint,
            staged: Any = staged,
            barrier: Any = barrier,
            made: Any = made,
            ended: Any = ended,
        ) -> None:
            barrier.wait(timeout=20)
            done = commit(sink, staged, checkpoint - 1, may_have_landed=True)
            made.append(done)
            if Answer.RETRY_LATER in done.answers():  # a busy metastore; a coordinator asks again, too
                passing.update(done.reasons())
                done = commit(sink, staged, checkpoint - 1, may_have_landed=True)
                made.append(done)
            ended.append(done)

        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert set[Answer | None]().union(*(one.answers() for one in ended)) <= YES, passing
        assert len(ended) == 2
        assert [one.aggregated[0].answer for one in made].count(Answer.COMMITTED) == 1, passing
    assert passing.total() <= rounds // 100 + 1, passing
    expected = Counter((number % 3, str(number)) for number in range(1, rounds + 1))
    expected.update((number, "one") for number in range(1, rounds + 1))
    assert place.rows() == expected
    assert place.staged() == set()


def test_two_committers_of_one_checkpoint_commit_it_once(place: Place) -> None:
    race(place, RACES)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_a_thousand_races_of_two_committers(place: Place) -> None:
    race(place, 1_000)


def test_a_zombie_that_wakes_up_later_commits_nothing_again(place: Place) -> None:
    sink = place.sink()
    first, second = stage(sink, 1, ROWS), stage(sink, 2, MORE)
    zombie = harness.requests_for(sink, first)
    writers, aggregated = sink.create_committer(), sink.create_aggregated_committer()
    commit(sink, first)
    commit(sink, second, 1)
    writers.commit(zombie.writers)
    aggregated.commit(zombie.aggregated)
    assert zombie.answers() == {Answer.ALREADY_COMMITTED}
    assert place.rows() == Counter(ROWS + MORE)


@pytest.mark.parametrize("data", [True, False])
def test_a_table_made_anew_never_gets_what_was_staged_for_the_former(place: Place, data: bool) -> None:
    sink = place.sink()
    commit(sink, stage(sink, 1, ROWS))
    identity = sink.evidence().target
    staged = stage(sink, 2, MORE)
    place.create(place.drop(data))
    made = commit(sink, staged, 0 if data else 1)
    assert made.reasons() == {"TargetReplaced"}
    assert made.answers() == {Answer.REFUSED}
    assert place.partitions() == []
    sink.prepare_target(harness.SCHEMA)
    assert sink.evidence().target not in ("", identity)


def test_a_table_that_is_gone_is_said_by_name_and_there_is_nothing_to_clean(place: Place) -> None:
    sink = place.sink()
    staged = stage(sink, 1, ROWS)
    place.drop()
    made = commit(sink, staged)
    assert made.answers() == {Answer.REFUSED}
    assert made.reasons() == {"TableMissing"}
    harness.ask(sink, "abort", staged)
    harness.recover(sink, harness.garbage(epoch=2, firsts=[1, 1]))
    harness.clean(sink, 1)
    assert sink.evidence().target == ""
    with pytest.raises(TargetError, match="TableMissing"):
        place.sink(createTable=False).prepare_target(harness.SCHEMA)


def test_a_wrong_key_of_the_bucket_is_said_by_name(
    hive_bucket: S3Server, hive_metastore: Metastore, hive_database: str
) -> None:
    settings = on_s3(hive_bucket, hive_database)
    settings["storage"]["secretKey"] = "wrong-secret"
    with pytest.raises(TargetError, match="PermissionDenied") as caught:
        make(hive_metastore, hive_database, **settings)
    assert caught.value.path == "options.table"
    assert "wrong-secret" not in str(caught.value)


def test_a_table_that_was_moved_is_another_target(place: Place) -> None:
    sink = place.sink()
    staged = stage(sink, 1, ROWS)
    table = place.table()
    moved = copy.deepcopy(table)
    moved.sd.location += "_moved"
    with place.server.client() as client:
        client.alter_table(place.database, place.name, moved)
    assert commit(sink, staged).reasons() == {"TargetReplaced"}
    assert place.rows() == Counter()


def altered(place: Place, change: Callable[[Any], None]) -> None:
    """Change the first partition past the sink."""
    partition = place.partitions()[0]
    change(partition)
    with place.server.client() as client:
        client.alter_partition(place.database, place.name, partition)


def test_partitions_that_are_elsewhere_or_other_files_get_nothing(place: Place) -> None:
    sink = place.sink()
    commit(sink, stage(sink, 1, [(1, "one")]))
    staged = stage(sink, 2, [(1, "more"), (2, "two")])

    def move(partition: Any) -> None:
        partition.sd.location += "_moved"

    former = place.partitions()[0]
    altered(place, move)
    made = commit(sink, staged, 1)
    assert made.answers() == {Answer.REFUSED}
    assert made.reasons() == {"PartitionElsewhere"}
    assert len(place.staged()) == 2  # nothing was moved into place

    def to_text(partition: Any) -> None:
        partition.sd = former.sd
        partition.sd.inputFormat = "org.apache.hadoop.mapred.TextInputFormat"

    altered(place, to_text)
    assert commit(sink, staged, 1).reasons() == {"PartitionFormat"}


def test_what_others_say_of_a_partition_is_kept_and_an_abort_drops_none(place: Place) -> None:
    sink = place.sink()
    commit(sink, stage(sink, 1, [(1, "one")]))

    def tell(partition: Any) -> None:
        partition.parameters["told"] = "by others"

    altered(place, tell)
    commit(sink, stage(sink, 2, [(1, "more"), (2, "two")]), 1)
    aborted = stage(sink, 3, [(1, "never"), (3, "three")])
    harness.ask(sink, "fence", aborted, 2)
    harness.ask(sink, "abort", aborted, 2)
    found = {tuple(one.values): one.parameters.get("told") for one in place.partitions()}
    assert found == {("1",): "by others", ("2",): None}
    assert place.rows() == Counter([(1, "one"), (1, "more"), (2, "two")])


def test_a_table_that_was_emptied_by_others_refuses_what_comes_after(place: Place) -> None:
    sink = place.sink()
    commit(sink, stage(sink, 1, ROWS))
    staged = stage(sink, 2, MORE)
    for path in (place.directory / "_sinkjob").glob("*.json"):
        path.unlink()
    assert commit(sink, staged, 1).reasons() == {"TargetBehindLedger"}
    assert place.rows() == Counter(ROWS)


def test_a_success_file_stands_in_each_directory_that_was_written_to(place: Place) -> None:
    sink = place.sink(successFile=True)
    commit(sink, stage(sink, 1, [(1, "one")]))
    commit(sink, stage(sink, 2, [(1, "more"), (2, "two")]), 1)
    found = {path.parent.name: path.stat().st_size for path in place.directory.rglob("_SUCCESS")}
    assert found == {"id=1": 0, "id=2": 0}
    plain = make(place.server, place.database)
    commit(plain.sink(successFile=True), stage(plain.sink(), 1, ROWS))
    assert (plain.directory / "_SUCCESS").is_file()
