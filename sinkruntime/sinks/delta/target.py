"""A table before its first rows: created where it is missing, compared with them, columns added where that is wanted.

Called by `prepare_target`, once per driver start, and by writers that route, when the first row of a table comes. Every
step may be repeated, and another may do it at the same time.
"""

from __future__ import annotations

import threading
import time

import pyarrow as pa

from sinkruntime.errors import TargetError
from sinkruntime.sinks.delta import table as tables
from sinkruntime.sinks.delta.options import Options, Write
from sinkruntime.sinks.delta.place import Place
from sinkruntime.tables import schemas

#: A routing writer's view of a table may be this old. What has changed since then the committer finds.
SHAPE_AGE_SECONDS = 5.0
SHAPES_MAX = 256

_shapes: dict[tuple[str, str], tuple[float, tables.Shape]] = {}
_lock = threading.Lock()


def prepare(options: Options, rows: pa.Schema) -> tables.Shape:
    """Raises `TargetError` unless the rows can be written to the table."""
    if options.write is Write.UPSERT:
        options.changes.check(rows)
        rows = tables.without(rows, options.omit)
    tables.check_types(rows)
    place = Place(options)
    table = tables.find(place)
    if table is None and not options.create_table:
        message, advice = f"there is no Delta table at {place.uri}", "create it, or leave out `createTable: false`"
        raise TargetError("TableMissing", message, path="options.path", advice=advice)
    if table is None:
        tables.create(place, options, rows)
        table = tables.load(place)
    tables.check_features(table, options)
    tables.check_partitions(tables.shape_of(table), options)
    if options.merge_schema:
        tables.add_columns(place, rows)
        table = tables.load(place)
    shape = tables.shape_of(table)
    schemas.check(rows, shape.schema, "options.path")
    return shape


def recent(options: Options, rows: pa.Schema) -> tables.Shape:
    """As `prepare`, at most `SHAPE_AGE_SECONDS` ago; shared by the tasks of a process."""
    key = options.model_dump_json(), rows.to_string()
    now = time.monotonic()
    with _lock:
        found = _shapes.get(key)
    if found is not None and now - found[0] < SHAPE_AGE_SECONDS:
        return found[1]
    shape = prepare(options, rows)
    with _lock:
        if len(_shapes) >= SHAPES_MAX:
            _shapes.pop(min(_shapes, key=lambda at: _shapes[at][0]))
        _shapes[key] = now, shape
    return shape
