"""SQL that moves staged rows, as it was written down; URLs and options of the jdbc sink; names of what it makes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sinkruntime.api import Lineage, RunOn, SinkIdentity, WriterContext
from sinkruntime.sinks.jdbc import JdbcSink
from sinkruntime.sinks.jdbc.dialects import DUCKDB, MYSQL, ORACLE, POSTGRESQL, SQLITE, SQLSERVER, Dialect, Move
from sinkruntime.sinks.jdbc.names import NAME_BYTES_MAX, Origin, origin_of, owner_prefix, staged_name
from sinkruntime.sinks.jdbc.options import Options, Write
from sinkruntime.sinks.jdbc.prepared import MySQLTransactions, xid_of, xid_prefix
from tests.sinks import harness

GOLDEN = {
    "postgresql": (
        POSTGRESQL,
        'DELETE FROM "t" WHERE EXISTS (SELECT 1 FROM (SELECT "k", "v", "_sj_deletes" FROM (SELECT "k", "v", '
        '"_sj_deletes", ROW_NUMBER() OVER (PARTITION BY "k" ORDER BY "_sj_order" DESC) AS "_sj_rank" FROM "s") r '
        'WHERE "_sj_rank" = 1) l WHERE l."_sj_deletes" AND "t"."k" = l."k")',
        'INSERT INTO "t" ("k", "v") SELECT "k", "v" FROM (SELECT "k", "v", "_sj_deletes" FROM (SELECT "k", "v", '
        '"_sj_deletes", ROW_NUMBER() OVER (PARTITION BY "k" ORDER BY "_sj_order" DESC) AS "_sj_rank" FROM "s") r '
        'WHERE "_sj_rank" = 1) l WHERE NOT (l."_sj_deletes") ORDER BY "k" ON CONFLICT ("k") DO UPDATE SET '
        '"v" = excluded."v"',
    ),
    "mysql": (
        MYSQL,
        "DELETE t FROM `t` t JOIN (SELECT `k`, `v`, `_sj_deletes` FROM (SELECT `k`, `v`, `_sj_deletes`, ROW_NUMBER() "
        "OVER (PARTITION BY `k` ORDER BY `_sj_order` DESC) AS `_sj_rank` FROM `s`) r WHERE `_sj_rank` = 1) l ON "
        "t.`k` = l.`k` WHERE l.`_sj_deletes`",
        "INSERT INTO `t` (`k`, `v`) SELECT `k`, `v` FROM (SELECT `k`, `v`, `_sj_deletes` FROM (SELECT `k`, `v`, "
        "`_sj_deletes`, ROW_NUMBER() OVER (PARTITION BY `k` ORDER BY `_sj_order` DESC) AS `_sj_rank` FROM `s`) r "
        "WHERE `_sj_rank` = 1) l WHERE NOT (l.`_sj_deletes`) ORDER BY `k` ON DUPLICATE KEY UPDATE `v` = VALUES(`v`)",
    ),
    "oracle": (
        ORACLE,
        'DELETE FROM "t" WHERE EXISTS (SELECT 1 FROM (SELECT "k", "v", "_sj_deletes" FROM (SELECT "k", "v", '
        '"_sj_deletes", ROW_NUMBER() OVER (PARTITION BY "k" ORDER BY "_sj_order" DESC) AS "_sj_rank" FROM "s") r '
        'WHERE "_sj_rank" = 1) l WHERE l."_sj_deletes" = 1 AND "t"."k" = l."k")',
        'MERGE INTO "t" t USING (SELECT "k", "v" FROM (SELECT "k", "v", "_sj_deletes" FROM (SELECT "k", "v", '
        '"_sj_deletes", ROW_NUMBER() OVER (PARTITION BY "k" ORDER BY "_sj_order" DESC) AS "_sj_rank" FROM "s") r '
        'WHERE "_sj_rank" = 1) l WHERE NOT (l."_sj_deletes" = 1)) l ON (t."k" = l."k") WHEN MATCHED THEN UPDATE SET '
        't."v" = l."v" WHEN NOT MATCHED THEN INSERT ("k", "v") VALUES (l."k", l."v")',
    ),
    "sqlserver": (
        SQLSERVER,
        "DELETE FROM [t] WHERE EXISTS (SELECT 1 FROM (SELECT [k], [v], [_sj_deletes] FROM (SELECT [k], [v], "
        "[_sj_deletes], ROW_NUMBER() OVER (PARTITION BY [k] ORDER BY [_sj_order] DESC) AS [_sj_rank] FROM [s]) r "
        "WHERE [_sj_rank] = 1) l WHERE l.[_sj_deletes] = 1 AND [t].[k] = l.[k]);",
        "MERGE INTO [t] WITH (HOLDLOCK) AS t USING (SELECT [k], [v] FROM (SELECT [k], [v], [_sj_deletes] FROM (SELECT "
        "[k], [v], [_sj_deletes], ROW_NUMBER() OVER (PARTITION BY [k] ORDER BY [_sj_order] DESC) AS [_sj_rank] FROM "
        "[s]) r WHERE [_sj_rank] = 1) l WHERE NOT (l.[_sj_deletes] = 1)) l ON (t.[k] = l.[k]) WHEN MATCHED THEN UPDATE "
        "SET t.[v] = l.[v] WHEN NOT MATCHED THEN INSERT ([k], [v]) VALUES (l.[k], l.[v]);",
    ),
}


def move_of(dialect: Dialect, write: Write) -> Move:
    quote = dialect.quote
    return Move(quote("t"), (quote("k"), quote("v")), (quote("k"),), quote("s"), write)


@pytest.mark.parametrize("name", GOLDEN)
def test_changes_are_moved_by_the_sql_that_was_written_down(name: str) -> None:
    dialect, *statements = GOLDEN[name]
    assert dialect.moves(move_of(dialect, Write.CHANGES)) == statements


def test_oracle_and_sql_server_insert_and_upsert_by_the_sql_that_was_written_down() -> None:
    """Never run against either: only this text is known to be so."""
    assert ORACLE.moves(move_of(ORACLE, Write.INSERT)) == ['INSERT INTO "t" ("k", "v") SELECT "k", "v" FROM "s"']
    assert SQLSERVER.moves(move_of(SQLSERVER, Write.INSERT)) == ["INSERT INTO [t] ([k], [v]) SELECT [k], [v] FROM [s];"]
    assert ORACLE.moves(move_of(ORACLE, Write.UPSERT)) == [
        'MERGE INTO "t" t USING (SELECT "k", "v" FROM (SELECT "k", "v" FROM (SELECT "k", "v", ROW_NUMBER() OVER '
        '(PARTITION BY "k" ORDER BY "_sj_order" DESC) AS "_sj_rank" FROM "s") r WHERE "_sj_rank" = 1) l WHERE 1 = 1) l '
        'ON (t."k" = l."k") WHEN MATCHED THEN UPDATE SET t."v" = l."v" WHEN NOT MATCHED THEN INSERT ("k", "v") '
        'VALUES (l."k", l."v")'
    ]
    assert SQLSERVER.moves(move_of(SQLSERVER, Write.UPSERT)) == [
        "MERGE INTO [t] WITH (HOLDLOCK) AS t USING (SELECT [k], [v] FROM (SELECT [k], [v] FROM (SELECT [k], [v], "
        "ROW_NUMBER() OVER (PARTITION BY [k] ORDER BY [_sj_order] DESC) AS [_sj_rank] FROM [s]) r WHERE [_sj_rank] = "
        "1) l WHERE 1 = 1) l ON (t.[k] = l.[k]) WHEN MATCHED THEN UPDATE SET t.[v] = l.[v] WHEN NOT MATCHED THEN "
        "INSERT ([k], [v]) VALUES (l.[k], l.[v]);"
    ]


def test_rows_of_duckdb_are_never_refused_in_time_and_others_are() -> None:
    assert not options(url="duckdb:///x.db").rejects_rows
    assert options(url="sqlite:///x.db").rejects_rows
    assert options().rejects_rows


@pytest.mark.parametrize("dialect", [SQLITE, DUCKDB])
def test_sqlite_and_duckdb_move_as_postgresql_does(dialect: Dialect) -> None:
    for write in Write:
        assert dialect.moves(move_of(dialect, write)) == POSTGRESQL.moves(move_of(POSTGRESQL, write))


@pytest.mark.parametrize(("dialect", "quoted"), [(POSTGRESQL, '"a""b"'), (MYSQL, '`a"b`'), (SQLSERVER, '[a"b]')])
def test_names_are_quoted_as_they_are(dialect: Dialect, quoted: str) -> None:
    assert dialect.quote('a"b') == quoted


def options(**values: Any) -> Options:
    return Options.model_validate({"url": "postgresql://u@h/d", "table": "t", **values})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"url": "oracle://u:geheim@h/d"}, "Oracle is not supported: no driver is built in"),
        ({"url": "sqlserver://u:geheim@h/d"}, "SQL Server is not supported: no driver is built in"),
        ({"url": "db2://u:geheim@h/d"}, "db2:// is not supported"),
        ({"url": "jdbc:postgresql://h/geheim"}, "leave `jdbc:` out"),
        ({"url": "geheim"}, "has no scheme"),
        ({"url": "postgresql://u:geheim@h:port/d"}, "is no URL"),
        ({"url": "postgresql://u:geheim@h"}, "names no database"),
        ({"url": "postgresql://u:geheim@/d"}, "names no host"),
        ({"url": "postgresql://u:geheim@h/d?target=x"}, "the parameter `target` is not supported"),
        ({"url": "postgresql://u:1?geheim@h/d"}, "must be percent-encoded"),
        ({"url": "postgresql://u:1/geheim@h", "user": "u"}, "must be percent-encoded"),
        ({"url": "postgresql://u:1#geheim@h/d"}, "must be percent-encoded"),
        ({"url": "sqlite:///job#1/x.db"}, "must be percent-encoded"),
        ({"url": "sqlite://geheim"}, "names no file"),
        ({"url": "duckdb:///:memory:"}, "names no file"),
        ({"url": "mysql://h/d"}, "no user is named"),
        ({"write": "upsert"}, "needs `key`"),
        ({"key": ["k"]}, "`key` is for"),
        ({"write": "changes", "key": ["k"]}, "go together"),
        ({"deleteWhen": "op = 'D'"}, "go together"),
        ({"write": "changes", "key": ["k"], "deleteWhen": "a < b"}, "cannot read the condition"),
        ({"mode": "xa", "url": "sqlite:///x"}, "sqlite has none"),
        (
            {"mode": "xa", "write": "upsert", "key": ["k"]},
            "a later checkpoint with the same key would wait for our own",
        ),
        ({"url": "sqlite:///x.db", "table": "other.t"}, "sqlite knows no schema"),
    ],
)
def test_bad_options_are_refused_by_name_and_tell_no_secret(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        options(**values)
    text = "; ".join(error["msg"] for error in caught.value.errors())
    assert said in text
    assert "geheim" not in text


def test_files_are_committed_by_the_driver_and_relative_to_the_manifest() -> None:
    local = options(url="sqlite:///data/x.db")
    assert JdbcSink.default_run_on(local) is RunOn.DRIVER
    assert JdbcSink.located(local, "/base").address.path == "/base/data/x.db"
    for base in ("/job#1", "/job?", "/100%25", "/a b;c"):
        placed = JdbcSink.located(local, base)
        assert placed.address.path == f"{base}/data/x.db"
        assert JdbcSink.located(placed, "/elsewhere").address.path == placed.address.path
    assert JdbcSink.default_run_on(options()) is RunOn.OPERATOR
    assert str(options(password="geheim").address) == "postgresql://h:5432/d"
    assert "geheim" not in repr(options(url="postgresql://u:geheim@h/d"))


numbers = st.integers(0, 10**6)


@given(numbers, numbers, st.integers(0, 10**5), st.integers(0, 10**9))
def test_a_staged_name_tells_its_origin_and_fits(checkpoint: int, epoch: int, subtask: int, attempt: int) -> None:
    identity = SinkIdentity(harness.LEDGER, "a-rather-long-name-of-a-sink", "ns/job")
    lineage = Lineage(checkpoint, epoch, subtask, subtask + 1, attempt)
    context = WriterContext(
        identity, lineage, "0123456789ab", harness.SCHEMA, harness.Counters(), harness.ManualClock()
    )
    origin = Origin(checkpoint, epoch, subtask, attempt)
    name, xid = staged_name(context), xid_of(context)
    assert len(name.encode()) <= NAME_BYTES_MAX
    assert origin_of(name, owner_prefix(identity)) == origin
    assert origin_of(xid, xid_prefix(identity)) == origin
    assert len(xid) <= 199
    parts = MySQLTransactions(1.0)._parts(xid).replace("'", "").split(",")
    assert "_".join(parts) == xid
    assert all(len(part) <= 64 for part in parts)


@pytest.mark.parametrize("name", ["", "_sj_x", "_sj_0_1_2_3_4_5", "t"])
def test_names_of_others_have_no_origin(name: str) -> None:
    assert origin_of(name, owner_prefix(harness.identity())) is None
