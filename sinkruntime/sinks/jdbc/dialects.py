"""SQL in which databases differ, as text: how names are quoted, and how staged rows are moved into the table.

Databases use it; tests compare it with what was written down before. For Oracle and SQL Server there is only this text:
it was never run against one. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from sinkruntime.sinks.jdbc.options import Write

#: Columns of ours in staging tables of `upsert` and `changes`: the row's place in its writer, and whether it deletes.
ORDER = "_sj_order"
DELETES = "_sj_deletes"
_RANK = "_sj_rank"


@dataclass(frozen=True, slots=True)
class Move:
    """What is moved: a target with its columns, the key, and one staging table. All but `write` are quoted."""

    target: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    source: str
    write: Write = Write.INSERT

    @property
    def others(self) -> tuple[str, ...]:
        """The columns that are not part of the key."""
        return tuple(column for column in self.columns if column not in self.key)


@dataclass(frozen=True, slots=True)
class Dialect:
    """SQL of PostgreSQL, SQLite, DuckDB; others derive from it."""

    opening: str = '"'
    closing: str = '"'
    for_update: str = " FOR UPDATE"
    insert_absent: tuple[str, str] = ("INSERT INTO", " ON CONFLICT DO NOTHING")
    short_text: str = "varchar(255)"
    whole_number: str = "bigint"
    boolean: str = "boolean"
    true: str = ""  # what makes a condition of a boolean column

    def quote(self, name: str) -> str:
        """An identifier as it is."""
        return f"{self.opening}{name.replace(self.closing, self.closing * 2)}{self.closing}"

    def qualified(self, schema: str, table: str) -> str:
        """A table with its schema, if one is named."""
        return f"{self.quote(schema)}.{self.quote(table)}" if schema else self.quote(table)

    def moves(self, move: Move) -> list[str]:
        """The statements that move one staging table's rows."""
        if move.write is Write.INSERT:
            columns = ", ".join(move.columns)
            return [f"INSERT INTO {move.target} ({columns}) SELECT {columns} FROM {move.source}"]
        deletes = [self._delete(move)] if move.write is Write.CHANGES else []
        return [*deletes, self._upsert(move)]

    def last(self, move: Move) -> str:
        """A SELECT of the last row of each key."""
        columns = ", ".join(self._staged(move))
        rank = f"ROW_NUMBER() OVER (PARTITION BY {', '.join(move.key)} ORDER BY {self.quote(ORDER)} DESC)"
        ranked = f"SELECT {columns}, {rank} AS {self.quote(_RANK)} FROM {move.source}"
        return f"SELECT {columns} FROM ({ranked}) r WHERE {self.quote(_RANK)} = 1"

    def _staged(self, move: Move) -> tuple[str, ...]:
        return (*move.columns, self.quote(DELETES)) if move.write is Write.CHANGES else move.columns

    def _kept(self, move: Move) -> str:
        """Rows to write, in the order of the key: transactions that touch the same rows do so in the same order."""
        where = f" WHERE NOT ({self._flag('l')})" if move.write is Write.CHANGES else " WHERE 1 = 1"
        return f"SELECT {', '.join(move.columns)} FROM ({self.last(move)}) l{where}"

    def _flag(self, alias: str) -> str:
        return f"{alias}.{self.quote(DELETES)}{self.true}"

    def _matches(self, move: Move, target: str) -> str:
        return " AND ".join(f"{target}.{column} = l.{column}" for column in move.key)

    def _delete(self, move: Move) -> str:
        inner = f"SELECT 1 FROM ({self.last(move)}) l WHERE {self._flag('l')} AND {self._matches(move, move.target)}"
        return f"DELETE FROM {move.target} WHERE EXISTS ({inner})"

    def _upsert(self, move: Move) -> str:
        changed = ", ".join(f"{column} = excluded.{column}" for column in move.others)
        action = f"DO UPDATE SET {changed}" if changed else "DO NOTHING"
        columns, key = ", ".join(move.columns), ", ".join(move.key)
        kept = f"{self._kept(move)} ORDER BY {key}"
        return f"INSERT INTO {move.target} ({columns}) {kept} ON CONFLICT ({key}) {action}"


@dataclass(frozen=True, slots=True)
class MySQLDialect(Dialect):
    """MySQL and MariaDB."""

    opening: str = "`"
    closing: str = "`"
    insert_absent: tuple[str, str] = ("INSERT IGNORE INTO", "")
    short_text: str = "varchar(255) CHARACTER SET ascii COLLATE ascii_bin"

    def _delete(self, move: Move) -> str:
        joined = f"JOIN ({self.last(move)}) l ON {self._matches(move, 't')}"
        return f"DELETE t FROM {move.target} t {joined} WHERE {self._flag('l')}"

    def _upsert(self, move: Move) -> str:
        changed = move.others or move.key[:1]
        update = ", ".join(f"{column} = VALUES({column})" for column in changed)
        kept = f"{self._kept(move)} ORDER BY {', '.join(move.key)}"
        return f"INSERT INTO {move.target} ({', '.join(move.columns)}) {kept} ON DUPLICATE KEY UPDATE {update}"


@dataclass(frozen=True, slots=True)
class MergeDialect(Dialect):
    """What Oracle and SQL Server share: MERGE."""

    true: str = " = 1"

    def merge_into(self, move: Move) -> str:
        """The beginning of a MERGE."""
        return f"MERGE INTO {move.target} t"

    def _upsert(self, move: Move) -> str:
        columns = ", ".join(move.columns)
        values = ", ".join(f"l.{column}" for column in move.columns)
        changed = ", ".join(f"t.{column} = l.{column}" for column in move.others)
        update = f" WHEN MATCHED THEN UPDATE SET {changed}" if changed else ""
        insert = f" WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})"
        return f"{self.merge_into(move)} USING ({self._kept(move)}) l ON ({self._matches(move, 't')}){update}{insert}"


@dataclass(frozen=True, slots=True)
class OracleDialect(MergeDialect):
    """Oracle 12.2 or later."""

    short_text: str = "VARCHAR2(255)"
    whole_number: str = "NUMBER(19)"
    boolean: str = "NUMBER(1)"


@dataclass(frozen=True, slots=True)
class SQLServerDialect(MergeDialect):
    """SQL Server 2016 or later. HOLDLOCK: without it two MERGEs may both find a key missing."""

    opening: str = "["
    closing: str = "]"
    for_update: str = ""
    boolean: str = "bit"

    def merge_into(self, move: Move) -> str:
        return f"MERGE INTO {move.target} WITH (HOLDLOCK) AS t"

    def moves(self, move: Move) -> list[str]:
        return [f"{text};" for text in MergeDialect.moves(self, move)]


POSTGRESQL = Dialect()
SQLITE = Dialect(for_update="")
DUCKDB = Dialect(for_update="")
MYSQL = MySQLDialect()
ORACLE = OracleDialect()
SQLSERVER = SQLServerDialect()
