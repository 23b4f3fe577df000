"""Reads files of rows back for the kill matrix: Parquet by DuckDB, ORC by pyarrow, JSON by the standard library.

The file benches call it. Partition values are read from the directories' names.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

import duckdb
import pyarrow.orc

from tests.killmatrix.rows import COLUMNS, EPOCH, Row, Rows

NULL = "__HIVE_DEFAULT_PARTITION__"


class FileRows:
    """Rows of visible files, each read once: a file that was seen must stay, unchanged, for ever."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, Rows]] = {}

    def total(self, present: dict[str, tuple[str, Path]]) -> Rows:
        """`present`: by visible name what tells its version, and where its bytes are."""
        vanished = sorted(self._known.keys() - present.keys())
        assert not vanished, f"{len(vanished)} files that were visible are gone, first {vanished[0]}"
        rows: Rows = Counter()
        for name, (version, path) in present.items():
            if name not in self._known:
                self._known[name] = (version, _read(name, path))
            known, found = self._known[name]
            assert known == version, f"{name} was visible, and has changed"
            rows.update(found)
        return rows


def _read(name: str, path: Path) -> Rows:
    partitions = dict(part.split("=", 1) for part in PurePosixPath(name).parent.parts)
    fixed = {unquote(key): None if value == NULL else unquote(value) for key, value in partitions.items()}
    kind = name.rpartition(".")[2]
    records = {"parquet": _parquet, "orc": _orc}.get(kind, _json)(path)
    return Counter(_row({**record, **fixed}) for record in records)


def _parquet(path: Path) -> list[dict[str, object]]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        # As one literal: DuckDB takes `*`, `?` and `[` in a name for patterns, and these names hold some.
        relation = connection.execute(
            'SELECT * REPLACE (epoch_us("at") AS "at") FROM read_parquet(?, hive_partitioning = false)',
            [_literal(path)],
        )
        names = [column[0] for column in relation.description or ()]
        return [dict(zip(names, values, strict=True)) for values in relation.fetchall()]


def _orc(path: Path) -> list[dict[str, object]]:
    """Timestamps are wall clocks in UTC."""
    records: list[dict[str, object]] = pyarrow.orc.read_table(path).to_pylist()
    for record in records:
        at = record.get("at")
        if isinstance(at, datetime.datetime):
            record["at"] = (at.replace(tzinfo=datetime.UTC) - EPOCH) // datetime.timedelta(microseconds=1)
    return records


def _literal(path: Path) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in str(path))


def _json(path: Path) -> list[dict[str, object]]:
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    for record in records:
        if record.get("at") is not None:
            since = datetime.datetime.fromisoformat(record["at"]) - EPOCH
            record["at"] = since // datetime.timedelta(microseconds=1)
    return records


def _row(record: dict[str, object]) -> Row:
    assert record.keys() <= set(COLUMNS), f"columns {sorted(record)}"
    return tuple(record.get(column) for column in COLUMNS)  # type: ignore[return-value]
