"""The hive sink's options, and what is said of tables before any is written: what is taken, what is refused and how."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sinkruntime.api import Guarantee, RunOn
from sinkruntime.errors import ConfigurationError, TargetError
from sinkruntime.sinks.hive import HiveSink
from sinkruntime.sinks.hive.columns import to_arrow, to_hive
from sinkruntime.sinks.hive.metastore import connected
from sinkruntime.sinks.hive.options import Format, Options
from sinkruntime.sinks.hive.table import Place, local_or_uri, supported, to_create, values_of
from sinkruntime.storage.names import NULL_PARTITION, partition_directory
from tests.sinks import harness


def options(**given_options: Any) -> Options:
    return Options.model_validate({"metastore": "thrift://metastore:9083", "table": "lake.flights", **given_options})


def test_names_are_those_of_the_metastore() -> None:
    assert options(table="Lake.Flights").full_name == "lake.flights"
    assert options(table="flights").full_name == "default.flights"
    assert (options().codec(Format.PARQUET), options().codec(Format.ORC)) == ("snappy", "zlib")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"metastore": "metastore:9083"}, "expected one address, thrift://host or thrift://host:9083"),
        ({"metastore": "thrift://one:9083,thrift://two:9083"}, "expected one address"),
        ({"table": "a.b.c"}, "`a.b.c` is not `table` or `database.table`"),
        ({"table": "a-b"}, "`a-b` is not `table` or `database.table`"),
        ({"format": "avro"}, "Input should be 'parquet' or 'orc'"),
        ({"format": "orc", "compression": "gzip"}, "orc cannot be compressed by gzip; expected one of zlib, snappy"),
        ({"location": "hdfs://namenode/lake"}, "hdfs:// is not supported; expected a local path, or s3a://bucket"),
        ({"location": "s3a:///lake"}, "`location` names no bucket"),
        ({"partitionBy": ["a", "a"]}, "`a` is listed twice"),
        ({"storage": {"accessKey": "a"}}, "`accessKey` and `secretKey` are given together"),
    ],
)
def test_wrong_options_are_refused_with_what_is_right(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        options(**wrong)
    assert message in str(caught.value)


def test_committers_run_where_the_files_are() -> None:
    assert HiveSink.default_run_on(options()) is RunOn.OPERATOR
    assert HiveSink.default_run_on(options(location="s3a://lake/flights")) is RunOn.OPERATOR
    assert HiveSink.default_run_on(options(location="/data/flights")) is RunOn.DRIVER
    assert HiveSink.guarantee(options(), {}).guarantee is Guarantee.EXACTLY_ONCE


def test_local_locations_begin_at_the_manifest() -> None:
    assert HiveSink.located(options(location="lake"), "/jobs").location == "/jobs/lake"
    assert HiveSink.located(options(location="s3a://lake/x"), "/jobs").location == "s3a://lake/x"


def test_uploads_that_expire_are_said_for_a_bucket() -> None:
    storage = {"uploadLifetime": "1h"}
    on_s3 = HiveSink(options(location="s3a://lake/x", storage=storage), harness.identity())
    assert on_s3.staged_life_seconds() == 3_600
    assert HiveSink(options(location="/x", storage=storage), harness.identity()).staged_life_seconds() is None


@pytest.mark.parametrize("spelling", ["/a/b", "/a/b/", "file:/a/b", "file:///a/b"])
def test_one_directory_has_several_spellings(spelling: str) -> None:
    assert local_or_uri(spelling) == "/a/b"
    assert local_or_uri("s3://bucket/a/") == local_or_uri("s3a://bucket/a")


PLAIN = ["boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date", "timestamp"]
names = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
decimals = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: f"decimal({p},{s})"))
hive_types = st.recursive(
    st.sampled_from(PLAIN) | decimals,
    lambda inner: st.one_of(
        inner.map(lambda one: f"array<{one}>"),
        st.tuples(inner, inner).map(lambda two: f"map<{two[0]},{two[1]}>"),
        st.lists(st.tuples(names, inner), min_size=1, max_size=4, unique_by=lambda pair: pair[0]).map(
            lambda fields: f"struct<{','.join(f'{name}:{kind}' for name, kind in fields)}>"
        ),
    ),
    max_leaves=8,
)


@given(hive_types)
def test_types_of_hive_and_arrow_lead_to_each_other(hive: str) -> None:
    assert to_hive(to_arrow(hive)) == hive


@pytest.mark.parametrize(
    "hive",
    ["varchar(3)", "char(1)", "timestamp with local time zone", "uniontype<int>", "array<int", "map<int>", "struct<>"],
)
def test_types_that_are_not_supported_are_named(hive: str) -> None:
    with pytest.raises(ValueError, match="is not supported"):
        to_arrow(hive)


def test_large_types_of_arrow_are_the_plain_ones_of_hive() -> None:
    kinds = (pa.large_string(), pa.large_binary(), pa.large_list(pa.int8()))
    assert [to_hive(kind) for kind in kinds] == ["string", "binary", "array<tinyint>"]


values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20) | st.none()


@given(st.lists(values, min_size=1, max_size=3))
def test_the_directory_of_a_partition_says_its_values(given_values: list[str | None]) -> None:
    columns = tuple(f"c{number}" for number in range(len(given_values)))
    directory = partition_directory(columns, tuple(given_values))
    assert values_of(directory) == [value or NULL_PARTITION for value in given_values]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parameters": {"transactional": "TRUE"}}, r"AcidTable: lake.flights is a transactional \(ACID\) table"),
        ({"parameters": {"transactional_properties": "x", "Transactional": "true"}}, "AcidTable"),
        ({"parameters": {"storage_handler": "x"}}, "StorageHandler: lake.flights is kept by a storage handler"),
        ({"tableType": "MATERIALIZED_VIEW"}, "NotATable: lake.flights is a view"),
    ],
)
def test_kinds_of_tables_that_are_no_plain_files_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    table = to_create(options(), harness.SCHEMA)
    assert supported(table, options()) is Format.PARQUET
    for name, value in change.items():
        setattr(table, name, value)
    with pytest.raises(TargetError, match=message):
        supported(table, options())
    skewed = to_create(options(), harness.SCHEMA)
    skewed.sd.storedAsSubDirectories = True
    with pytest.raises(TargetError, match="SkewedTable"):
        supported(skewed, options())


def test_a_compression_that_the_tables_format_does_not_know_is_refused() -> None:
    table = to_create(options(format="orc"), harness.SCHEMA)
    with pytest.raises(TargetError, match="FormatMismatch: orc cannot be compressed by gzip"):
        supported(table, options(compression="gzip"))


def test_a_missing_client_is_said_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hive_metastore", None)
    with (
        pytest.raises(ConfigurationError, match=r"pip install 'sinkjob\[hive\]'") as caught,
        connected("thrift://metastore"),
    ):
        pass
    assert caught.value.reason == "MissingModule"


def test_a_place_is_another_one_when_it_moves_or_is_made_anew() -> None:
    place = Place("file:/a", "1/2", None)
    assert place.stamp == "1/2@file:/a"
    assert len({place.stamp, Place("file:/b", "1/2", None).stamp, Place("file:/a", "1/3", None).stamp}) == 3
