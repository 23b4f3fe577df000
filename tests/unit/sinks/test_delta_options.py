"""The delta sink's options: what is taken, what is refused and how."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sinkruntime.api import Guarantee, RunOn
from sinkruntime.sinks.delta import VACUUM_RETENTION_SECONDS, DeltaSink
from sinkruntime.sinks.delta.options import Options
from sinkruntime.sinks.delta.place import endpoint_of
from sinkruntime.tables.changes import Changes, Condition
from tests.sinks import harness


def options(**given: Any) -> Options:
    return Options.model_validate({"path": "/data/out", **given})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": None}, "`path` is missing"),
        ({"path": "file:/x"}, "`path`: expected a path, or file:///path"),
        ({"path": "hdfs://host/x"}, "hdfs:// is not supported; expected a local path, or s3://bucket/prefix"),
        ({"path": "s3://bucket"}, "names no bucket and prefix"),
        ({"catalog": "glue"}, "`catalog` is not supported: no catalog commits Delta tables here; give `path`"),
        ({"table": "a.b"}, "`table` is not supported"),
        ({"write": "merge"}, "Input should be 'append', 'complete' or 'upsert'"),
        ({"write": "upsert"}, "`write: upsert` needs `key`"),
        ({"key": ["id"]}, "`key` belongs to `write: upsert`"),
        ({"orderBy": ["id"]}, "`orderBy` belongs to `write: upsert`"),
        ({"deleteWhen": "gone"}, "`deleteWhen` belongs to `write: upsert`"),
        ({"write": "upsert", "key": ["id"], "omit": ["id"]}, "`omit`: `id` is a column that the table needs"),
        ({"write": "upsert", "key": ["id"], "deleteWhen": "1 = 1"}, "`deleteWhen`: cannot read the condition"),
        ({"storage": {"accessKey": "a"}}, "`accessKey` and `secretKey` are given together"),
        ({"maintenance": {"vacuumEvery": 0}}, "greater than or equal to 1"),
        ({"pathh": "x"}, "Extra inputs are not permitted"),
    ],
)
def test_contradictions_are_refused_with_what_would_be_right(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        options(**given)
    assert message in str(caught.value)


def test_changes_follow_from_the_options() -> None:
    made = options(write="upsert", key=["id"], orderBy=["at"], deleteWhen="op = 'D'", omit=["op"])
    assert made.changes == Changes(("id",), ("at",), Condition("op", ("D",)))


def test_local_tables_and_heavy_commits_belong_to_the_driver() -> None:
    on_s3 = {"path": "s3://bucket/table"}
    assert DeltaSink.default_run_on(options()) is RunOn.DRIVER
    assert DeltaSink.default_run_on(options(**on_s3)) is RunOn.OPERATOR
    assert DeltaSink.default_run_on(options(**on_s3, write="upsert", key=["id"])) is RunOn.DRIVER
    assert DeltaSink.default_run_on(options(**on_s3, maintenance={"optimizeEvery": 10})) is RunOn.DRIVER


def test_it_offers_exactly_once_and_says_how_long_staged_files_live() -> None:
    assert DeltaSink.guarantee(options(), {}).guarantee is Guarantee.EXACTLY_ONCE
    assert DeltaSink(options(), harness.identity()).staged_life_seconds() == VACUUM_RETENTION_SECONDS
    upsert = DeltaSink(options(write="upsert", key=["id"]), harness.identity())
    assert upsert.staged_life_seconds() is None


def test_relative_paths_begin_at_the_manifest() -> None:
    assert DeltaSink.located(options(path="out/table"), "/jobs").path == "/jobs/out/table"
    assert DeltaSink.located(options(path="s3://bucket/table"), "/jobs").path == "s3://bucket/table"


def test_secrets_are_not_shown() -> None:
    made = options(
        path="s3://b/t", storage={"accessKey": "AKIA", "secretKey": "hidden-one", "sessionToken": "hidden-2"}
    )
    assert "hidden" not in repr(made)
    assert "hidden" not in str(made.model_dump(mode="json"))


@pytest.mark.parametrize(
    ("storage", "url"),
    [
        ({}, "https://bucket.s3.us-east-1.amazonaws.com"),
        ({"region": "eu-west-1", "pathStyle": True}, "https://s3.eu-west-1.amazonaws.com"),
        ({"endpoint": "http://minio:9000/", "pathStyle": True}, "http://minio:9000"),
        ({"endpoint": "https://objects.example.org"}, "https://bucket.objects.example.org"),
    ],
)
def test_the_bucket_stands_in_the_host_or_in_the_path(storage: dict[str, Any], url: str) -> None:
    assert endpoint_of(options(path="s3://bucket/table", storage=storage)) == url
