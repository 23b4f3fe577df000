"""Rows as parameters of INSERT, for databases that take no other form: MySQL, MariaDB, SQLite.

Values are made column by column; what a database cannot keep (NaN, for both) is an error and never something else.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from sinkruntime.errors import TargetError
from sinkruntime.sinks.jdbc.database import Column
from sinkruntime.sinks.jdbc.json_text import json_texts
from sinkruntime.sinks.jdbc.stage import Load

#: Of parameters that are made at once.
ROWS_MAX = 10_000


class InsertLoad(Load):
    """INSERT of many rows at a time. `convert` makes a database's own values of a column's Python ones."""

    def __init__(self, sql: str, columns: Sequence[Column]) -> None:
        self._sql = sql
        self._columns = columns

    def write(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, ROWS_MAX):
            part = batch.slice(start, ROWS_MAX)
            values = [self._values(array, column) for array, column in zip(part.columns, self._columns, strict=True)]
            self.insert(self._sql, list(zip(*values, strict=True)))

    @abstractmethod
    def insert(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run it for all rows."""

    @abstractmethod
    def converter(self, kind: pa.DataType) -> Callable[[Any], Any] | None:
        """What makes a value of a Python value that is not None; None: nothing has to."""

    def _values(self, array: Any, column: Column) -> list[Any]:
        try:
            return self._python_values(array, column)
        except (ValueError, OverflowError) as error:  # a time beyond the year 9999, text that is not UTF-8
            message = f"column `{column.name}` ({column.declared}) cannot hold a value: {error}"
            raise TargetError("RowsRefused", message, path="options.table") from error

    def _python_values(self, array: Any, column: Column) -> list[Any]:
        kind = array.type
        if pa.types.is_nested(kind):
            return list(json_texts(array).to_pylist())
        values: list[Any] = array.to_pylist()
        if pa.types.is_floating(kind) and any(value is not None and not math.isfinite(value) for value in values):
            message = f"column `{column.name}`: this database keeps no NaN and no infinity"
            raise TargetError("RowsRefused", message, path="options.table", advice="replace them in a transform")
        convert = self.converter(kind)
        return values if convert is None else [None if value is None else convert(value) for value in values]
