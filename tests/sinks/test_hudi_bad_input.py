"""What the hudi sink refuses, and how it says so: options, rows, tables of other kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from sinkruntime.api import RunOn, Sink
from sinkruntime.errors import TargetError
from sinkruntime.sinks.hudi import HudiSink
from sinkruntime.sinks.hudi.options import Options
from sinkruntime.sinks.hudi.schemas import avro
from tests.sinks import harness
from tests.sinks.harness import SCHEMA, commit, stage

UPSERT = {"write": "upsert", "recordKey": ["id"], "orderingField": "name"}


def make(path: Path, **more: Any) -> HudiSink:
    return HudiSink(Options.model_validate({"path": str(path), "table": "flights", **more}), harness.identity())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"path": "file:/x"}, "`path`: expected a path, or file:///path"),
        ({"path": "hdfs://there/x"}, "`path`: hdfs:// is not supported; expected a local path, or s3://bucket/prefix"),
        ({"path": "s3:///x"}, "`path` names no bucket"),
        ({"table": "my-table"}, "`my-table` is not letters, digits"),
        ({"write": "bulk"}, "insert"),
        ({"write": "upsert", "orderingField": "name"}, "`write: upsert` needs `recordKey`"),
        ({"write": "upsert", "recordKey": ["id"]}, "`write: upsert` needs `orderingField`"),
        ({**UPSERT, "orderingField": "id"}, "`orderingField` is a part of the key"),
        ({"orderingField": "name"}, "`orderingField` belongs to `write: upsert`"),
        ({"deleteWhen": "op = 'D'"}, "`deleteWhen` belongs to `write: upsert`"),
        ({**UPSERT, "deleteWhen": "op > 3"}, "`deleteWhen`: cannot read the condition"),
        ({**UPSERT, "buckets": 0}, "greater than or equal to 1"),
        ({"partitionBy": ["a", "a"]}, "`a` is listed twice"),
        ({"storage": {"accessKey": "x"}}, "`accessKey` and `secretKey` are given together"),
    ],
)
def test_options_that_contradict_themselves_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Options.model_validate({"path": "x", "table": "flights", **given})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "more", "said"),
    [
        ({"id": pa.int64(), "my name": pa.string()}, {}, "column `my name`: Hudi cannot have this name"),
        ({"_hoodie_file_name": pa.string()}, {}, "none of Hudi's own"),
        ({"id": pa.uint8()}, {}, "column `id`: Hudi tables cannot hold uint8"),
        ({"id": pa.duration("s")}, {}, r"column `id`: Hudi tables cannot hold duration\[s\]"),
        ({"m": pa.map_(pa.int32(), pa.int32())}, {}, "column `m`: Hudi tables cannot hold map"),
        ({"s": pa.struct([("x", pa.time32("s"))])}, {}, "column `s`: Hudi tables cannot hold time32"),
        ({"id": pa.int64()}, {"recordKey": ["key"]}, "options.recordKey: .*no column `key`; the rows have id"),
        ({"id": pa.int64()}, {"partitionBy": ["day"]}, "options.partitionBy: .*no column `day`"),
        ({"id": pa.float64()}, {"recordKey": ["id"]}, "`id` is double; expected strings, whole numbers"),
        ({"at": pa.timestamp("us")}, {"partitionBy": ["at"]}, "`at` is timestamp.*; expected strings"),
        ({"id": pa.int64()}, UPSERT, "options.orderingField: .*no column `name`"),
        ({"id": pa.int64(), "name": pa.list_(pa.int64())}, UPSERT, "`name` is list.*, which does not compare"),
        ({"id": pa.int64(), "name": pa.string()}, {**UPSERT, "deleteWhen": "gone"}, "there is no column `gone`"),
        (
            {"id": pa.int64(), "name": pa.string()},
            {**UPSERT, "deleteWhen": "name"},
            "`name` is string, and cannot be True",
        ),
        (
            {"id": pa.int64(), "name": pa.int32()},
            {**UPSERT, "deleteWhen": "name = 'D'"},
            "`name` is int32, and cannot be .D.",
        ),
    ],
)
def test_rows_that_hudi_cannot_hold_are_refused(
    tmp_path: Path, schema: dict[str, pa.DataType], more: dict[str, Any], said: str
) -> None:
    with pytest.raises(TargetError, match=said):
        make(tmp_path, **more).prepare_target(pa.schema(schema))
    assert not (tmp_path / ".hoodie").exists()


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"id": pa.string(), "name": pa.string()}, "column `id`: the table has long, it would get string"),
        ({"id": pa.int64()}, "column `name`: the table has string, the rows do not have it"),
        (
            {"id": pa.int64(), "name": pa.string(), "x": pa.decimal128(9, 2)},
            r"column `x`: the table has no such column, it would get decimal\(9, 2\)",
        ),
    ],
)
def test_other_columns_than_the_table_has_are_refused(
    tmp_path: Path, schema: dict[str, pa.DataType], said: str
) -> None:
    make(tmp_path).prepare_target(SCHEMA)
    with pytest.raises(TargetError, match=said):
        make(tmp_path).prepare_target(pa.schema(schema))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hoodie.table.type", "MERGE_ON_READ"),
        ("hoodie.table.version", "8"),
        ("hoodie.timeline.layout.version", "2"),
        ("hoodie.table.base.file.format", "ORC"),
        ("hoodie.populate.meta.fields", "false"),
        ("hoodie.table.metadata.partitions", "files"),
        ("hoodie.table.cdc.enabled", "true"),
        ("hoodie.bootstrap.base.path", "/elsewhere"),
        ("hoodie.datasource.write.drop.partition.columns", "true"),
        ("hoodie.partition.metafile.use.base.format", "true"),
        ("hoodie.table.multiple.base.file.formats.enable", "true"),
    ],
)
def test_tables_of_another_kind_are_refused_by_name(tmp_path: Path, key: str, value: str) -> None:
    make(tmp_path).prepare_target(SCHEMA)
    edit(tmp_path, key, value)
    with pytest.raises(TargetError, match=f"options.path: UnsupportedTable: {key} is {value}"):
        make(tmp_path).prepare_target(SCHEMA)


def test_a_table_whose_columns_another_action_tells_is_taken_by_them(tmp_path: Path) -> None:
    """The first write of a table can be an insert overwrite, a `replacecommit`; its `name` must have a value."""
    sink = make(tmp_path, recordKey=["id"])
    sink.prepare_target(SCHEMA)
    for path in (tmp_path / ".hoodie").glob("2*"):
        path.unlink()
    has = json.loads(avro(SCHEMA, "flights"))
    has["fields"][1]["type"] = "string"
    path = tmp_path / ".hoodie" / "20260101000000000.replacecommit"
    path.write_text(json.dumps({"extraMetadata": {"schema": json.dumps(has)}}))
    with pytest.raises(TargetError, match="SchemaMismatch: column `name`: the table requires a value, the rows may"):
        sink.prepare_target(SCHEMA)
    sink.prepare_target(pa.schema([SCHEMA.field(0), SCHEMA.field(1).with_nullable(False)]))
    with pytest.raises(TargetError, match="was not made by `write: upsert`"):
        make(tmp_path, **UPSERT).prepare_target(SCHEMA)
    path.write_text("{}")
    with pytest.raises(TargetError, match=r"UnsupportedTable: .*\.replacecommit does not tell"):
        sink.prepare_target(SCHEMA)


@pytest.mark.parametrize(
    ("more", "option"),
    [
        ({"table": "trips"}, "table"),
        ({"recordKey": ["name"]}, "recordKey"),
        ({"partitionBy": []}, "partitionBy"),
        ({"hiveStyle": True}, "hiveStyle"),
        ({"urlEncode": False}, "urlEncode"),
    ],
)
def test_options_that_differ_from_the_table_are_refused(tmp_path: Path, more: dict[str, Any], option: str) -> None:
    given = {"recordKey": ["id"], "partitionBy": ["name"]}
    make(tmp_path, **given).prepare_target(SCHEMA)
    make(tmp_path, **given).prepare_target(SCHEMA)
    with pytest.raises(TargetError, match="TableDiffers: the table has hoodie") as caught:
        make(tmp_path, **{**given, **more}).prepare_target(SCHEMA)
    assert caught.value.path == f"options.{option}"


def test_another_key_generator_is_refused_by_name(tmp_path: Path) -> None:
    given = {"recordKey": ["id"], "partitionBy": ["name"]}
    make(tmp_path, **given).prepare_target(SCHEMA)
    edit(tmp_path, "hoodie.table.keygenerator.type", "TIMESTAMP")
    with pytest.raises(TargetError, match=r"the table has hoodie.table.keygenerator=TIMESTAMP"):
        make(tmp_path, **given).prepare_target(SCHEMA)
    edit(tmp_path, "hoodie.table.keygenerator.type", "org.apache.hudi.keygen.SimpleKeyGenerator")
    make(tmp_path, **given).prepare_target(SCHEMA)


def edit(path: Path, key: str, value: str) -> None:
    properties = path / ".hoodie" / "hoodie.properties"
    kept = [line for line in properties.read_text().splitlines() if not line.startswith(f"{key}=")]
    properties.write_text("\n".join([*kept, f"{key}={value}", ""]))


@pytest.mark.parametrize(
    ("more", "rows", "said"),
    [
        ({"recordKey": ["name"]}, [(1, None)], "NullInKey: column `name` of the record key"),
        ({"recordKey": ["name"]}, [(1, "")], "NullInKey: column `name` of the record key: .*or an empty one"),
        ({"partitionBy": ["name"], "urlEncode": False}, [(1, "a/b")], "'a/b' cannot be a directory; use `urlEncode"),
        ({"partitionBy": ["name"]}, [(1, "..")], "readers skip a directory named '..'; use `hiveStyle"),
        ({"partitionBy": ["name"]}, [(1, "_x")], "readers skip a directory named '_x'; use `hiveStyle"),
    ],
)
def test_values_that_hudi_cannot_hold_are_refused(tmp_path: Path, more: Any, rows: Any, said: str) -> None:
    sink = make(tmp_path, **more)
    sink.prepare_target(SCHEMA)
    with pytest.raises(TargetError, match=said):
        stage(sink, 1, rows)


def test_a_target_file_of_a_later_release_is_refused(tmp_path: Path) -> None:
    sink = make(tmp_path)
    sink.prepare_target(SCHEMA)
    path = tmp_path / ".hoodie/.sinkjob/target.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 9}))
    with pytest.raises(TargetError, match=r"EvidenceDamaged: .*format 9 is not known"):
        sink.evidence()


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TargetError, match="NotADirectory"):
        make(tmp_path / "file" / "table").prepare_target(SCHEMA)


def test_a_table_that_is_dropped_while_the_job_runs_is_seen(tmp_path: Path) -> None:
    import shutil

    sink: Sink = make(tmp_path / "table")
    sink.prepare_target(SCHEMA)
    commit(sink, stage(sink, 1, [(1, "x")]))
    shutil.rmtree(tmp_path / "table")
    evidence = sink.evidence()
    assert evidence is not None
    assert (evidence.checkpoint, evidence.target) == (0, "")
    assert commit(sink, stage(sink, 2, [(2, "y")]), 1).reasons() == {"TargetBehindLedger"}


def test_local_tables_are_committed_by_the_driver_and_others_by_the_operator() -> None:
    local = Options.model_validate({"path": "x", "table": "t"})
    remote = Options.model_validate({"path": "s3://bucket/x", "table": "t"})
    assert HudiSink.default_run_on(local) is RunOn.DRIVER
    assert HudiSink.default_run_on(remote) is RunOn.OPERATOR
    assert HudiSink.located(local, "/base").path == "/base/x"
    assert HudiSink.located(remote, "/base").path == "s3://bucket/x"
