"""One table as this sink uses it: its schema, its identity, the names of what is staged in it.

Used by the writer, the committers and the sink. A data file lies in its final place from the beginning, where no
manifest names it; a small marker beside the table, written first, says so: what is staged can be listed by it.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any

from sinkruntime.api import SinkIdentity
from sinkruntime.errors import TargetError
from sinkruntime.sinks.paimon import schema as schemas
from sinkruntime.sinks.paimon.files import Files, files_of
from sinkruntime.sinks.paimon.options import Options
from sinkruntime.sinks.paimon.schema import Schema
from sinkruntime.storage.names import PRIVATE, escape

#: Paimon's name for the partition of nulls and blank texts.
NULL_PARTITION = "__DEFAULT_PARTITION__"


class Table:
    """A table and one sink. `open` connects."""

    def __init__(self, options: Options, identity: SinkIdentity) -> None:
        self.options = options
        self.identity = identity
        self.files: Files = files_of(options)
        self._staging = f"{PRIVATE}/staging/{identity.ledger_id}/{identity.sink}"

    def open(self) -> None:
        self.files.open()

    def close(self) -> None:
        self.files.close()

    def schema(self) -> Schema:
        """The newest schema, checked. Raises `TargetError`."""
        found = schemas.latest_schema(self.files)
        if found is None:
            message = f"there is no table {self.options.table} in {self.options.catalog.warehouse}"
            raise TargetError("TableMissing", message, path="options.table")
        schemas.check_supported(found, self.options)
        return found

    def target(self) -> str:
        """Which table this is, as Paimon itself tells it: a table that was made anew has another one. "": no table."""
        first = schemas.read_schema(self.files, 0)
        return "" if first is None else f"{self.options.table}.{first.made_ms}"

    # --- what is staged

    def mark(self, name: str, paths: Sequence[str]) -> None:
        """Before files are written: say that they are staged. `name` holds a writer's stem."""
        self.files.write(f"{self._staging}/{name}", json.dumps(list(paths)).encode())

    def unmark(self, names: Sequence[str]) -> None:
        """They are no longer staged: committed, or gone."""
        self.files.delete([f"{self._staging}/{name}" for name in names])

    def markers(self) -> list[str]:
        """The names of all that this sink has staged."""
        return self.files.names(self._staging)

    def marked(self, name: str) -> list[str]:
        """The files of a marker; none where it is gone or was never finished."""
        data = self.files.read(f"{self._staging}/{name}")
        return [str(path) for path in json.loads(data)] if data else []


def marker_of(path: str) -> str:
    """The marker of a data file."""
    return path.rpartition("/")[2].rpartition(".")[0]


def bucket_directory(schema: Schema, values: Sequence[Any], bucket: int) -> str:
    """`day=18262/bucket-0`: as Paimon names and escapes partitions."""
    null = schema.options.get("partition.default-name", NULL_PARTITION)
    parts = [
        f"{escape(column)}={escape(_text(value) or null)}"
        for column, value in zip(schema.partition_keys, values, strict=True)
    ]
    return "/".join([*parts, f"bucket-{bucket}"])


def _text(value: Any) -> str:
    """A partition value as Paimon's older form has it, the default; "" for null and blank texts."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.date):
        return str((value - datetime.date(1970, 1, 1)).days)
    return str(value)
