"""The paimon sink's options: what is taken, what is refused and how."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sinkruntime.api import Distribution, Guarantee, RunOn
from sinkruntime.sinks.paimon import PaimonSink
from sinkruntime.sinks.paimon.options import Options
from tests.sinks import harness

KEYED: dict[str, Any] = {"write": "upsert", "key": ["id"]}


def options(**given: Any) -> Options:
    return Options.model_validate({"catalog": {"warehouse": "/data/lake"}, "table": "db.rows", **given})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"catalog": {"warehouse": "file:/x"}}, "`catalog.warehouse`: expected a path, or file:///path"),
        ({"catalog": {"warehouse": "hdfs://host/x"}}, "hdfs:// is not supported; expected a local path, or s3://"),
        ({"catalog": {"warehouse": "s3:///x"}}, "names no bucket"),
        ({"catalog": {"type": "rest", "warehouse": "/x"}}, "'filesystem'"),
        ({"table": "rows"}, "`table` is `database.table`, of letters, digits and `_`"),
        ({"table": "db.rows$branch_b"}, "branches, system tables and `${...}` are not supported"),
        ({"table": "db.${country}"}, "branches, system tables and `${...}` are not supported"),
        ({"table": "db.a/../b"}, "`table` is `database.table`"),
        ({"key": ["id"]}, "`key` belongs to `write: upsert` or `changes`"),
        ({"orderBy": ["id"]}, "`orderBy` belongs to `write: upsert` or `changes`"),
        ({"bucket": 2}, "`bucket` belongs to `write: upsert` or `changes`"),
        ({"write": "upsert"}, "`write: upsert` needs `key`"),
        ({**KEYED, "deleteWhen": "gone"}, "`deleteWhen` and `write: changes` belong together"),
        ({**KEYED, "write": "changes"}, "`deleteWhen` and `write: changes` belong together"),
        ({**KEYED, "write": "changes", "deleteWhen": "op > 3"}, "`deleteWhen`: cannot read the condition; expected"),
        ({**KEYED, "partitionBy": ["day"]}, "`key` must hold every column of `partitionBy`; `day` is missing"),
        ({**KEYED, "bucket": -1}, "greater than or equal to 1"),
        ({"write": "overwrite"}, "'append', 'upsert' or 'changes'"),
        ({"storage": {"uploadLifetime": "1h"}}, "this sink leaves no uploads open"),
        ({"storage": {"accessKey": "a"}}, "`accessKey` and `secretKey` are given together"),
    ],
)
def test_what_cannot_be_is_refused_with_what_would_be_right(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        options(**given)
    assert message in str(caught.value)


def test_a_table_is_a_directory_of_the_warehouse() -> None:
    assert options().table_path == "/data/lake/db.db/rows"
    assert options(catalog={"warehouse": "s3://bucket/lake/"}).table_path == "s3://bucket/lake/db.db/rows"
    located = PaimonSink.located(options(catalog={"warehouse": "out"}), "/jobs")
    assert located.table_path == "/jobs/out/db.db/rows"
    assert PaimonSink.located(options(catalog={"warehouse": "s3://b/x"}), "/jobs").table_path == "s3://b/x/db.db/rows"


def test_local_tables_are_committed_by_the_driver_and_others_by_the_operator() -> None:
    assert PaimonSink.default_run_on(options()) is RunOn.DRIVER
    assert PaimonSink.default_run_on(options(catalog={"warehouse": "s3://b/x"})) is RunOn.OPERATOR


def test_every_mode_offers_exactly_once_and_says_how() -> None:
    for given, how in (({}, "a hard link"), ({"catalog": {"warehouse": "s3://b/x"}}, "If-None-Match")):
        offer = PaimonSink.guarantee(options(**given), {})
        assert offer.guarantee is Guarantee.EXACTLY_ONCE
        assert how in offer.why


def test_rows_with_a_key_come_by_it() -> None:
    assert PaimonSink(options(), harness.identity()).distribution() is None
    assert PaimonSink(options(**KEYED), harness.identity()).distribution() == Distribution(keys=("id",))
    ordered = options(**KEYED, orderBy=["at"])  # what does not fit in memory is written early, and must be older
    assert PaimonSink(ordered, harness.identity()).distribution() == Distribution(("id",), 0, ("id", "at"))
