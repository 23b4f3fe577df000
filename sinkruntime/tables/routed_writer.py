"""A task's writer that routes: rows go to a writer of the table that they name, made when the first row comes.

Used by table sinks whose option has `${field}`. It bounds tables, open files and buffers of the whole task: the table
with the most to give is made to close its files early. Rows that no table takes go to `context.reject`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from sinkruntime.api import Committable, SinkWriter, WriterContext
from sinkruntime.errors import TargetError
from sinkruntime.tables.template import Template

#: What all tables of a task may hold unencoded.
BUFFERED_BYTES_MAX = 256 * 1024**2
#: What a table turns down for good, whatever its rows are; everything else that goes wrong fails the task.
TURNED_DOWN = frozenset(
    {
        *("TableMissing", "SchemaMismatch", "UnsupportedTableFeature", "TableFeature", "NoBranch"),
        *("PartitionMismatch", "PartitionOutsideKey", "UnsupportedType"),
    }
)


class TableStage(Protocol):
    """The writer of one table: a `SinkWriter` that says what it holds, and can close its files early."""

    def write(self, batch: pa.RecordBatch) -> None: ...
    def flush(self, end_of_input: bool) -> None: ...
    def prepare_commit(self, checkpoint: int) -> Committable | None: ...
    def abort_prepare(self) -> None: ...
    def close(self) -> None: ...
    def open_files(self) -> int: ...
    def buffered_bytes(self) -> int: ...
    def spill(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Routes:
    """How a sink routes. `omit`: columns that only route, and are not written; `path`: the option with the fields."""

    template: Template
    path: str
    tables_max: int
    open_files_max: int
    omit: tuple[str, ...] = ()

    def written(self, rows: pa.Schema) -> pa.Schema:
        """The rows' columns that a table gets."""
        return pa.schema([field for field in rows if field.name not in self.omit])


class RoutedWriter(SinkWriter):
    """Stages rows of many tables. `open_table(name, columns)` makes the writer of one, opened."""

    def __init__(
        self, routes: Routes, context: WriterContext, open_table: Callable[[str, pa.Schema], TableStage]
    ) -> None:
        self._routes = routes
        self._context = context
        self._open_table = open_table
        self._columns = routes.written(context.schema)
        self._tables: OrderedDict[str, TableStage] = OrderedDict()  # the least recently written first
        self._alike: dict[str, str] = {}  # names as they are told apart where case does not count
        self._refused: dict[str, tuple[str, str]] = {}  # tables that take no rows, and why

    def open(self) -> None:
        self._routes.template.check(self._context.schema, self._routes.path)

    def write(self, batch: pa.RecordBatch) -> None:
        for name, problem, rows in self._routes.template.split(batch):
            if problem:
                self._context.reject(rows, "BadTableName", problem)
                continue
            table = self._table(name)
            if table is None:
                self._context.reject(rows, *self._refused[name])
                continue
            table.write(rows.select(self._columns.names) if self._routes.omit else rows)
            self._tables.move_to_end(name)
            self._bound()

    def flush(self, end_of_input: bool) -> None:
        for table in self._tables.values():
            table.flush(end_of_input)

    def prepare_commit(self, checkpoint: int) -> Committable | None:
        staged = {name: table.prepare_commit(checkpoint) for name, table in sorted(self._tables.items())}
        found = {name: committable for name, committable in staged.items() if committable is not None}
        return {"tables": found} if found else None

    def abort_prepare(self) -> None:
        for table in self._tables.values():
            table.abort_prepare()

    def close(self) -> None:
        while self._tables:
            self._tables.popitem()[1].close()

    def _table(self, name: str) -> TableStage | None:
        """The table's writer; None: it takes no rows."""
        found = self._tables.get(name)
        if found is not None or name in self._refused:
            return found
        other = self._alike.setdefault(name.casefold(), name)
        if other != name:
            self._refused[name] = "BadTableName", f"`{name}` differs from `{other}` in nothing but case"
            return None
        if len(self._tables) >= self._routes.tables_max:
            message = f"a task writes to more than {self._routes.tables_max} tables, `{name}` would be one more"
            advice = "raise `maxTables`, or route by a column with fewer values"
            raise TargetError("TooManyTables", message, path="options.maxTables", advice=advice)
        try:
            made = self._open_table(name, self._columns)
        except TargetError as error:
            if error.reason not in TURNED_DOWN:
                raise
            self._refused[name] = error.reason, f"table `{name}`: {error.message}"
            return None
        self._tables[name] = made
        return made

    def _bound(self) -> None:
        """Early flush: the tables that have not been written to for the longest close their files first."""
        files = sum(table.open_files() for table in self._tables.values())
        for table in self._tables.values():
            if files <= self._routes.open_files_max:
                break
            files -= table.open_files()
            table.spill()
        held = {name: table.buffered_bytes() for name, table in self._tables.items()}
        left = sum(held.values())
        for name in sorted(held, key=lambda name: held[name], reverse=True):
            if left <= BUFFERED_BYTES_MAX:
                break
            left -= held[name]
            self._tables[name].spill()
