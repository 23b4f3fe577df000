"""The table before the first batch: created where it is missing, compared with the rows, evolved where that is wanted.

Called by `prepare_target`, once per driver start. Every step may be repeated, and another driver may do it at the same
time.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pyarrow as pa

from sinkruntime.errors import TargetError
from sinkruntime.sinks.iceberg import catalog, columns
from sinkruntime.sinks.iceberg.options import Options
from sinkruntime.tables import schemas

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table


def prepare(options: Options, schema: pa.Schema) -> None:
    """Raises `TargetError` unless the rows can be written to the table."""
    with catalog.opened(options) as opened:
        table = _load(opened, options, schema)
        schemas.check(schema, columns.arrow_schema(table.metadata.schema()))


def _load(opened: Catalog, options: Options, schema: pa.Schema) -> Table:
    try:
        return catalog.load_table(opened, options, options.table)
    except TargetError as error:
        if error.reason != "TableMissing" or not options.create_table:
            raise
    return create(opened, options, schema)


def create(opened: Catalog, options: Options, schema: pa.Schema) -> Table:
    """The table, made with the rows' columns; another may have made it at the same time."""
    from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError

    wanted = columns.iceberg_schema(schema)
    namespace = tuple(options.table.split(".")[:-1])
    with catalog.talking(options):
        for depth in range(1, len(namespace) + 1):
            if not opened.namespace_exists(namespace[:depth]):
                try:
                    opened.create_namespace(namespace[:depth])
                except NamespaceAlreadyExistsError:
                    continue
        properties = {"format-version": str(catalog.FORMAT_VERSION), **options.table_properties}
        # Another driver may have been first: its table is loaded and compared.
        with contextlib.suppress(TableAlreadyExistsError):
            opened.create_table(options.table, wanted, properties=properties)
    return catalog.load_table(opened, options, options.table)
