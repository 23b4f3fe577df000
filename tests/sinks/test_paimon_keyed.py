"""Paimon tables with a primary key: the last change counts, whatever the tasks, buckets and checkpoints."""

from __future__ import annotations

import datetime
import decimal
import math
import random
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from sinkruntime.api import Answer, Lineage
from sinkruntime.errors import TargetError
from sinkruntime.sinks.paimon import PaimonSink, buckets, types
from sinkruntime.sinks.paimon.binary_row import decode, encode
from sinkruntime.sinks.paimon.options import Options
from tests.servers.paimon import PaimonPeer
from tests.sinks import harness

pytestmark = pytest.mark.integration

_COLUMNS: dict[str, pa.DataType] = {
    "id": pa.int64(), "area": pa.string(), "name": pa.string(), "at": pa.int64(), "op": pa.string(),
}  # fmt: skip
CHANGES = pa.schema(_COLUMNS)
TABLE = "db.rows"


def make(warehouse: Path, ledger_id: str = harness.LEDGER, **options: Any) -> PaimonSink:
    told = {"catalog": {"warehouse": str(warehouse)}, "table": TABLE, "write": "upsert", "key": ["id"], **options}
    return PaimonSink(Options.model_validate(told), harness.identity(ledger_id))


def put(sink: PaimonSink, checkpoint: int, *tasks: pa.RecordBatch, previous: int | None = None) -> harness.Round:
    """Stage and commit a checkpoint, a task for each batch."""
    items = []
    for subtask, batch in enumerate(tasks):
        lineage = Lineage(checkpoint, 1, subtask, len(tasks), 0)
        writer = sink.create_writer(harness.writer_context(sink, lineage, batch.schema))
        writer.open()
        for start in range(0, batch.num_rows, 10_000):
            writer.write(batch.slice(start, 10_000))
        items.append((lineage, harness.finish(sink, writer, checkpoint)))
    staged = harness.Staged(checkpoint, 1, tuple(items))
    made = harness.commit(sink, staged, checkpoint - 1 if previous is None else previous)
    assert made.answers() == {Answer.COMMITTED}, made
    return made


def change(id: int, name: str | None, op: str = "u", area: str | None = "north", at: int = 0) -> dict[str, Any]:
    return {"id": id, "area": area, "name": name, "at": at, "op": op}


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=CHANGES)


def names(peer: PaimonPeer, warehouse: Path) -> dict[int, str | None]:
    return {row["id"]: row["name"] for row in peer.rows(warehouse, TABLE)}


def test_the_last_change_of_a_key_counts_within_and_across_checkpoints(paimon_peer: PaimonPeer, tmp_path: Path) -> None:
    sink = make(tmp_path, write="changes", deleteWhen="op = 'd'", bucket=3)
    sink.prepare_target(CHANGES)
    put(sink, 1, batch(change(1, "a"), change(2, "b"), change(1, "c")), batch(change(3, None)))
    assert names(paimon_peer, tmp_path) == {1: "c", 2: "b", 3: None}
    put(sink, 2, batch(change(2, None, "d"), change(4, "x"), change(4, None, "d"), change(3, "y")))
    assert names(paimon_peer, tmp_path) == {1: "c", 3: "y"}
    put(sink, 3, batch(change(2, "again")))
    assert names(paimon_peer, tmp_path) == {1: "c", 2: "again", 3: "y"}
    assert "op" not in paimon_peer.rows(tmp_path, TABLE)[0]


def test_order_by_decides_within_a_checkpoint(paimon_peer: PaimonPeer, tmp_path: Path) -> None:
    sink = make(tmp_path, orderBy=["at"])
    sink.prepare_target(CHANGES)
    put(sink, 1, batch(change(1, "late", at=9), change(1, "early", at=3), change(2, "x", at=1), change(2, "y", at=1)))
    assert names(paimon_peer, tmp_path) == {1: "late", 2: "y"}


def test_order_by_decides_also_where_a_task_writes_several_files(
    paimon_peer: PaimonPeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinkruntime.sinks.paimon.writer.BUFFERED_BYTES_MAX", 0)
    sink = make(tmp_path, orderBy=["at"])
    sink.prepare_target(CHANGES)
    rows = [batch(change(1, f"{at}", at=at)) for at in (3, 9, 5)]
    wish = sink.distribution()
    assert wish is not None
    if wish.sort_by:  # as Spark does it
        rows.sort(key=lambda one: tuple(one.column(name)[0].as_py() for name in wish.sort_by))
    lineage = Lineage(1, 1, 0, 1, 0)
    writer = sink.create_writer(harness.writer_context(sink, lineage, CHANGES))
    writer.open()
    for one in rows:
        writer.write(one)
    harness.commit(sink, harness.Staged(1, 1, ((lineage, harness.finish(sink, writer, 1)),)), 0)
    assert len(list(tmp_path.rglob("*.parquet"))) == len(rows)
    assert names(paimon_peer, tmp_path) == {1: "9"}


def test_nan_is_the_greatest_in_order_by(paimon_peer: PaimonPeer, tmp_path: Path) -> None:
    sink = make(tmp_path, orderBy=["at"])
    schema = CHANGES.set(CHANGES.get_field_index("at"), pa.field("at", pa.float64()))
    rows = [{**change(1, name), "at": at} for name, at in (("nan", math.nan), ("one", 1.0), ("none", None))]
    sink.prepare_target(schema)
    put(sink, 1, pa.RecordBatch.from_pylist(rows, schema=schema))
    assert names(paimon_peer, tmp_path) == {1: "nan"}


def test_keys_are_apart_in_each_partition(paimon_peer: PaimonPeer, tmp_path: Path) -> None:
    sink = make(tmp_path, key=["area", "id"], partitionBy=["area"], bucket=2)
    sink.prepare_target(CHANGES)
    put(sink, 1, batch(change(1, "a"), change(1, "b", area="a/b=c %"), change(1, "c", area="")))
    put(sink, 2, batch(change(1, "d", area="a/b=c %")))
    found = {(row["area"], row["id"]): row["name"] for row in paimon_peer.rows(tmp_path, TABLE)}
    assert found == {("north", 1): "a", ("a/b=c %", 1): "d", ("", 1): "c"}


def test_what_does_not_fit_in_memory_is_written_in_several_files(
    paimon_peer: PaimonPeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinkruntime.sinks.paimon.writer.BUFFERED_BYTES_MAX", 100_000)
    sink = make(tmp_path, bucket=2)
    sink.prepare_target(CHANGES)
    put(sink, 1, batch(*(change(number % 3_000, f"{number}") for number in range(30_000))))
    assert len(list(tmp_path.rglob("*.parquet"))) > 4
    assert names(paimon_peer, tmp_path) == {number: f"{27_000 + number}" for number in range(3_000)}


def test_another_ledger_writes_above_all_that_was_there(paimon_peer: PaimonPeer, tmp_path: Path) -> None:
    first = make(tmp_path)
    first.prepare_target(CHANGES)
    for checkpoint in (1, 2, 3):
        put(first, checkpoint, batch(change(1, f"first {checkpoint}")))
    second = make(tmp_path, harness.OTHER_LEDGER)
    second.prepare_target(CHANGES)
    put(second, 1, batch(change(1, "second")))
    assert names(paimon_peer, tmp_path) == {1: "second"}


def test_rows_of_another_writer_are_replaced_and_ours_by_theirs(paimon_peer: PaimonPeer, tmp_path: Path) -> None:
    fields = [("id", "int64", False), ("name", "string", True)]
    paimon_peer.create(tmp_path, TABLE, fields, primary_keys=["id"], options={"bucket": "2"})
    paimon_peer.append(tmp_path, TABLE, [{"id": 1, "name": "theirs"}, {"id": 2, "name": "theirs"}], times=3)
    sink = make(tmp_path)
    sink.prepare_target(harness.SCHEMA)
    put(sink, 1, harness.batch_of([(1, "ours"), (3, "ours")]), previous=0)
    assert names(paimon_peer, tmp_path) == {1: "ours", 2: "theirs", 3: "ours"}
    paimon_peer.append(tmp_path, TABLE, [{"id": 3, "name": "theirs"}])
    assert names(paimon_peer, tmp_path) == {1: "ours", 2: "theirs", 3: "theirs"}
    put(sink, 2, harness.batch_of([(3, "ours again")]))
    assert names(paimon_peer, tmp_path)[3] == "ours again"


@pytest.mark.parametrize(
    "rows", [20_000, pytest.param(1_000_000, marks=[pytest.mark.exhaustive, pytest.mark.timeout(900)])]
)
def test_a_stream_of_changes_ends_as_in_a_database(paimon_peer: PaimonPeer, tmp_path: Path, rows: int) -> None:
    chance = random.Random(f"changes {rows}")
    keys = rows // 4
    sink = make(
        tmp_path, write="changes", deleteWhen="op = 'd'", orderBy=["at"], bucket=4, key=["area", "id"],
        partitionBy=["area"],
    )  # fmt: skip
    sink.prepare_target(CHANGES)
    stream = []
    for number in range(rows):
        key = chance.randrange(keys)
        op = "d" if chance.random() < 0.05 else "u"
        stream.append(change(key, f"v{number}", op, f"area {key % 3}", number))
    size = rows // 5
    for start in range(0, rows, size):
        chance_order = stream[start : start + size]
        chance.shuffle(chance_order)  # out of order, within a checkpoint
        halves = [[row for row in chance_order if row["id"] % 2 == part] for part in (0, 1)]
        put(sink, start // size + 1, *(batch(*half) for half in halves))
    everything = pa.Table.from_pylist(stream, schema=CHANGES)
    with duckdb.connect() as connection:
        connection.register("stream", everything)
        last = 'SELECT area, id, arg_max(name, "at") AS name, arg_max(op, "at") AS op FROM stream GROUP BY area, id'
        rest = connection.execute(f"SELECT area, id, name FROM ({last}) WHERE op <> 'd'").fetchall()
    found = [(row["area"], row["id"], row["name"]) for row in paimon_peer.rows(tmp_path, TABLE)]
    assert sorted(found) == sorted(rest)
    assert paimon_peer.leftovers(tmp_path, TABLE) == set()


def test_a_key_without_a_value_is_refused(tmp_path: Path) -> None:
    sink = make(tmp_path)
    sink.prepare_target(CHANGES)
    with pytest.raises(TargetError, match="NullInKey: column `id`"):
        put(sink, 1, pa.RecordBatch.from_pylist([change(1, "a") | {"id": None}], schema=CHANGES))


def test_a_writer_without_a_prepared_table_says_so(tmp_path: Path) -> None:
    sink = make(tmp_path)
    sink.prepare_target(CHANGES)
    next(tmp_path.rglob("consumer-*")).unlink()
    with pytest.raises(TargetError, match="NotPrepared"):
        put(sink, 1, batch(change(1, "a")))


def test_keys_fall_into_the_buckets_that_paimon_says(paimon_peer: PaimonPeer) -> None:
    chance = random.Random("buckets")
    texts = ["", "a", "seven77", "eight888", "naïve 日本語", "👩‍🚀" * 9, "x" * 64, "y" * 65]
    makers: dict[str, Any] = {
        "INT": lambda: chance.randrange(-(2**31), 2**31),
        "BIGINT": lambda: chance.randrange(-(2**63), 2**63),
        "SMALLINT": lambda: chance.randrange(-9, 9),
        "TINYINT": lambda: chance.randrange(-9, 9),
        "BOOLEAN": lambda: chance.random() < 0.5,
        "STRING": lambda: chance.choice(texts),
        "DATE": lambda: datetime.date(1970, 1, 1) + datetime.timedelta(days=chance.randrange(-9_999, 99_999)),
        "DECIMAL(10, 2)": lambda: decimal.Decimal(chance.randrange(-(10**9), 10**9)).scaleb(-2),
    }
    for _ in range(30):
        kinds = [chance.choice(list(makers)) for _ in range(chance.choice([1, 1, 2, 3]))]
        fields = types.read_fields([{"id": i, "name": f"c{i}", "type": kind} for i, kind in enumerate(kinds)])
        rows = [tuple(makers[kind]() for kind in kinds) for _ in range(40)]
        columns = [pa.array([row[i] for row in rows], field.arrow) for i, field in enumerate(fields)]
        # As slices too: columns of a batch often begin in the middle of their buffers.
        sliced = [pa.concat_arrays([column.slice(0, 3), column]).slice(3) for column in columns]
        expected = paimon_peer.buckets(kinds, rows, 7)
        assert [int(number) for number in buckets.buckets_of(columns, 7)] == [number for _, number in expected]
        assert [int(number) for number in buckets.buckets_of(sliced, 7)] == [number for _, number in expected]
        for row, (data, _) in zip(rows, expected, strict=True):
            assert encode(row, fields) == data
            assert tuple(decode(data, fields)) == row


def test_rows_are_read_as_they_are_written_whatever_their_type(paimon_peer: PaimonPeer, tmp_path: Path) -> None:
    kinds: dict[str, pa.DataType] = {
        "tiny": pa.int8(), "small": pa.int16(), "whole": pa.int32(), "flag": pa.bool_(), "single": pa.float32(),
        "double": pa.float64(), "exact": pa.decimal128(9, 2), "long": pa.decimal128(38, 9), "bytes": pa.binary(),
        "day": pa.date32(), "at": pa.timestamp("us", tz="UTC"), "wall": pa.timestamp("us"),
        "list": pa.list_(pa.int32()), "map": pa.map_(pa.string(), pa.int64()),
        "pair": pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.string())]),
    }  # fmt: skip
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), *(pa.field(*pair) for pair in kinds.items())])
    full = {
        "id": 1, "tiny": -128, "small": 32_767, "whole": -(2**31), "flag": True, "single": -0.5, "double": 1e-300,
        "exact": decimal.Decimal("-1234567.89"), "long": decimal.Decimal("-12345678901234567890123456789.123456789"),
        "bytes": b"\x00\xff" * 20, "day": datetime.date(1969, 12, 31),
        "at": datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=datetime.UTC),
        "wall": datetime.datetime(9999, 12, 31, 1, 2, 3, 4), "list": [1, None], "map": [("k", 1), ("l", None)],  # noqa: DTZ001
        "pair": {"a": 1, "b": None},
    }  # fmt: skip
    empty = dict.fromkeys(schema.names) | {"id": 2}
    strange = full | {"id": 3, "double": float("nan"), "single": float("inf"), "list": [], "map": []}
    for write in ({"write": "append", "key": []}, {"table": "db.keyed"}):
        sink = make(tmp_path, **write)
        sink.prepare_target(schema)
        put(sink, 1, pa.RecordBatch.from_pylist([full, empty, strange], schema=schema))
        found = sorted(paimon_peer.rows(tmp_path, sink.options.table), key=lambda row: row["id"])
        assert found[:2] == [full, empty]
        assert math.isnan(found[2].pop("double"))
        assert found[2] == {name: value for name, value in strange.items() if name != "double"}
