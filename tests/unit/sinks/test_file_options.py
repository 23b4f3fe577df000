"""The file sink's options: what is taken, what is refused and how."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sinkruntime.api import Guarantee, RunOn
from sinkruntime.sinks.file import FileSink
from sinkruntime.sinks.file.options import COMPRESSIONS, Format, Options
from tests.sinks import harness


def options(**given: Any) -> Options:
    return Options.model_validate({"path": "/data/out", **given})


def test_defaults_are_those_of_spark() -> None:
    plain = options()
    assert (plain.format, plain.codec, plain.extension) == (Format.PARQUET, "snappy", ".snappy.parquet")
    assert str(plain.target_file_size) == "128MiB"


@pytest.mark.parametrize(
    ("given", "extension"),
    [
        ({"format": "parquet", "compression": "none"}, ".parquet"),
        ({"format": "csv", "compression": "gzip"}, ".csv.gz"),
        ({"format": "json"}, ".json"),
        ({"format": "orc"}, ".zstd.orc"),
        ({"format": "avro"}, ".avro"),
        ({"format": "text", "compression": "zstd"}, ".txt.zst"),
    ],
)
def test_extensions_say_format_and_compression(given: dict[str, str], extension: str) -> None:
    assert options(**given).extension == extension


def test_every_format_says_what_compresses_it() -> None:
    for kind in Format:
        for codec in COMPRESSIONS[kind]:
            assert options(format=kind.value, compression=codec).codec == codec


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": "hdfs://host/x"}, "hdfs:// is not supported; expected a local path, or s3://bucket/prefix"),
        ({"path": "gs://bucket/x"}, "gs:// is not supported"),
        ({"path": "s3:///x"}, "names no bucket"),
        ({"path": "file:/data/out"}, "`path`: expected a path, or file:///path"),
        ({"path": "file://host/data/out"}, "`path`: expected a path, or file:///path"),
        ({"path": "FILE:///data/out"}, "`path`: expected a path, or file:///path"),
        ({"path": "s3://bucket/raw#1"}, "`path`: a prefix without `?` and `#` is needed"),
        ({"path": "s3://bucket/raw?x=1"}, "`path`: a prefix without `?` and `#` is needed"),
        ({"format": "csv", "compression": "snappy"}, "csv cannot be compressed by snappy; expected one of none, gzip"),
        ({"format": "json", "header": True}, "`header` belongs to `format: csv`"),
        ({"delimiter": ";"}, "`delimiter` belongs to `format: csv`"),
        *(
            ({"format": "csv", "delimiter": wrong}, "is not one ASCII character, no quote or line end")
            for wrong in ('"', "\n", "\r", "é", "\0", "ab", "")
        ),
        ({"format": "csv", "stagedBy": "spark"}, "needs `format: parquet` or `orc` and a local path"),
        ({"path": "s3://bucket/x", "stagedBy": "spark"}, "needs `format: parquet` or `orc` and a local path"),
        ({"filePrefix": "_hidden"}, "`_hidden` is not letters, digits"),
        ({"maxOpenFiles": 0}, "greater than or equal to 1"),
        ({"partitionBy": ["a", "a"]}, "`a` is listed twice"),
        ({"storage": {"accessKey": "x"}}, "`accessKey` and `secretKey` are given together"),
        ({"tabel": "x"}, "Extra inputs are not permitted"),
    ],
)
def test_contradictions_are_refused_and_say_what_would_be_right(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        options(**given)
    assert message in str(caught.value)


def test_a_local_path_is_committed_by_the_driver_and_a_bucket_by_the_operator() -> None:
    assert FileSink.default_run_on(options()) is RunOn.DRIVER
    assert FileSink.default_run_on(options(path="s3://bucket/x")) is RunOn.OPERATOR


def test_files_arrive_exactly_once_and_the_offer_says_how() -> None:
    local, logged = FileSink.guarantee(options(), {}), FileSink.guarantee(options(log="spark"), {})
    assert local.guarantee is logged.guarantee is Guarantee.EXACTLY_ONCE
    assert "file by file" in local.why
    assert "each checkpoint appears whole" in logged.why


def test_relative_paths_begin_at_the_manifest() -> None:
    assert FileSink.located(options(path="out/x"), "/jobs").path == "/jobs/out/x"
    assert FileSink.located(options(path="file:///y"), "/jobs").path == "/y"
    assert FileSink.located(options(path="s3://b/x"), "/jobs").path == "s3://b/x"


def test_spark_stages_only_when_it_is_asked_to() -> None:
    def stages(**given: Any) -> bool:
        return FileSink(options(**given), harness.identity()).can_stage()

    assert not stages()
    assert stages(stagedBy="spark")
    assert stages(stagedBy="spark", format="orc")


def test_secrets_are_not_shown() -> None:
    shown = repr(options(storage={"accessKey": "AKIA", "secretKey": "hidden-value"}))
    assert "hidden-value" not in shown
    assert "AKIA" not in shown
