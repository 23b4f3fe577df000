"""`${field}` in the name of a table: which rows go to which table.

Read from the options by the table sinks; used by `routed_writer` to split batches. A value becomes part of a name only
if no catalog and no file system can take it for anything else. Pure; never drops a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from sinkruntime.errors import TargetError
from sinkruntime.storage.names import text_of
from sinkruntime.storage.writer import groups
from sinkruntime.tables.schemas import kind

_FIELD = re.compile(r"\$\{([^${}]+)\}")
_VALUE = re.compile(r"[A-Za-z0-9_-]+")
_SEPARATOR = re.compile(r"[./]")
#: Names that mean something else to the sinks and their formats.
RESERVED = ("_sinkjob", "sinkjob_", "_delta_log")
#: Of a whole name: it is also the name of one file, and file systems allow 255 bytes.
NAME_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class Template:
    """A name with fields in it."""

    text: str
    fields: tuple[str, ...]  # each once, as they first appear

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError, with what is wrong, unless the text has at least one field and nothing half written."""
        fields = tuple(dict.fromkeys(_FIELD.findall(text)))
        if not fields or "${" in _FIELD.sub("", text):
            raise ValueError("expected `${field}`, with the name of a column between the braces")
        return cls(text, fields)

    @property
    def example(self) -> str:
        """A name that it could give."""
        return _FIELD.sub("x", self.text)

    def name(self, values: tuple[Any, ...]) -> str:
        """The table for these values of `fields`. Raises ValueError, with what is wrong, where they make no name."""
        texts = {}
        for field, value in zip(self.fields, values, strict=True):
            text = text_of(value)
            if not _VALUE.fullmatch(text):
                said = "has no value" if value is None else f"is {text[:NAME_CHARACTERS_MAX]!r}"
                raise ValueError(f"column `{field}` {said}; expected letters A to Z, digits, `_` and `-`")
            texts[field] = text
        made = _FIELD.sub(lambda found: texts[found[1]], self.text)
        if len(made) > NAME_CHARACTERS_MAX:
            raise ValueError(f"`{made[:40]}…` has {len(made)} characters; expected at most {NAME_CHARACTERS_MAX}")
        if any(part.startswith(RESERVED) for part in _SEPARATOR.split(made)):
            raise ValueError(f"`{made}` is a name that the sink itself uses; expected one without {RESERVED[0]}")
        return made

    def check(self, rows: pa.Schema, path: str) -> None:
        """Raises `TargetError` unless the rows have the fields, as strings, whole numbers, dates or booleans."""
        for field in self.fields:
            if field not in rows.names:
                message = f"there is no column `{field}`; the rows have {', '.join(rows.names)}"
                raise TargetError("SchemaMismatch", message, path=path)
            found = rows.field(field).type
            types = pa.types
            if not any(
                is_kind(found) for is_kind in (types.is_string, types.is_integer, types.is_date, types.is_boolean)
            ):
                message = f"column `{field}` is {kind(found)}, which names no table"
                advice = "cast it to a string, a whole number, a date or a boolean in a transform"
                raise TargetError("UnsupportedType", message, path=path, advice=advice)

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, str, pa.RecordBatch]]:
        """(table, "", its rows in their order), or ("", what is wrong, rows that no table can take)."""
        try:
            found = list(groups(batch, self.fields))
        except (ValueError, OverflowError) as error:  # text that is not UTF-8, a date beyond the year 9999
            yield from self._split_unreadable(batch, error)
            return
        for values, numbers in found:
            rows = batch if len(numbers) == batch.num_rows else batch.take(numbers)
            try:
                made, problem = self.name(values), ""
            except ValueError as error:
                made, problem = "", str(error)
            yield made, problem, rows

    def _split_unreadable(self, batch: pa.RecordBatch, error: Exception) -> Iterator[tuple[str, str, pa.RecordBatch]]:
        """As `split`, halved until the rows that have no such values are alone."""
        if batch.num_rows == 1:
            yield "", f"column {', '.join(f'`{field}`' for field in self.fields)}: {error}", batch
            return
        half = batch.num_rows // 2
        yield from self.split(batch.slice(0, half))
        yield from self.split(batch.slice(half))
