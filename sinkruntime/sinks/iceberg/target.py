"""The table before the first batch: created where it is missing, compared with the rows, evolved where that is wanted.

Called by `prepare_target`, once per driver start. Every step may be repeated, and another driver may do it at the same
time.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sinkruntime.errors import TargetError
from sinkruntime.sinks.iceberg import catalog, columns, transforms
from sinkruntime.sinks.iceberg.options import Options
from sinkruntime.sinks.iceberg.writer import check_partitions
from sinkruntime.tables import schemas

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.sorting import SortOrder


#: Lost races with other writers of the table while its schema is changed.
ATTEMPTS_MAX = 5


def prepare(options: Options, rows: pa.Schema) -> None:
    """Raises `TargetError` unless the rows can be written to the table."""
    if options.keyed:
        options.changes.check(rows)
    schema = written(options, rows)
    with catalog.opened(options) as opened:
        table = _load(opened, options, schema)
        if options.evolve_schema:
            table = _evolved(opened, options, table, schema)
        schemas.check(schema, columns.arrow_schema(table.metadata.schema()))
        check_partitions(options, table)
        check_branch(options, table)


def written(options: Options, rows: pa.Schema) -> pa.Schema:
    """The rows' columns that go into the table."""
    for name in options.omit:
        if name not in rows.names:
            message = f"there is no column `{name}`; the rows have {', '.join(rows.names)}"
            raise TargetError("SchemaMismatch", message, path="options.omit")
    return pa.schema([field for field in rows if field.name not in options.omit])


def check_branch(options: Options, table: Table) -> None:
    """A tag never moves."""
    ref = table.metadata.refs.get(options.branch)
    if ref is not None and ref.snapshot_ref_type.value != "branch":
        message = f"`{options.branch}` is a tag of `{options.table}`, and cannot be written to"
        raise TargetError("NoBranch", message, path="options.branch")


def _load(opened: Catalog, options: Options, schema: pa.Schema) -> Table:
    try:
        return catalog.load_table(opened, options, options.table)
    except TargetError as error:
        if error.reason != "TableMissing" or not options.create_table:
            raise
    return create(opened, options, schema)


def layout(options: Options, schema: pa.Schema) -> tuple[Schema, PartitionSpec, SortOrder]:
    """What a table for these columns would look like. Raises `TargetError` where there can be none."""
    wanted = columns.iceberg_schema(schema)
    spec = transforms.partition_spec(options.partition_by, wanted)
    return wanted, spec, transforms.sort_order(options.sort_by, wanted)


def create(opened: Catalog, options: Options, schema: pa.Schema) -> Table:
    """The table, made with the rows' columns; another may have made it at the same time."""
    from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError

    wanted, spec, order = layout(options, schema)
    namespace = tuple(options.table.split(".")[:-1])
    with catalog.talking(options):
        for depth in range(1, len(namespace) + 1):
            with contextlib.suppress(NamespaceAlreadyExistsError):
                if not opened.namespace_exists(namespace[:depth]):
                    opened.create_namespace(namespace[:depth])
        properties = {"format-version": str(catalog.FORMAT_VERSION), **options.table_properties}
        # Another driver may have been first: its table is loaded and compared.
        with contextlib.suppress(TableAlreadyExistsError):
            opened.create_table(
                options.table, wanted, partition_spec=spec, sort_order=order, properties=properties
            )  # fmt: skip
    return catalog.load_table(opened, options, options.table)


def _evolved(opened: Catalog, options: Options, table: Table, schema: pa.Schema) -> Table:
    """The table with the rows' new columns and wider types; columns that they lack are optional in it."""
    from pyiceberg.exceptions import CommitFailedException

    for _ in range(ATTEMPTS_MAX):
        current = columns.arrow_schema(table.metadata.schema())
        additions, widened, optional = differences(current, schema)
        if not (additions or widened or optional):
            return table
        try:
            with catalog.talking(options), table.update_schema() as update:
                for path, field in additions:
                    kind = columns.iceberg_schema(pa.schema([field])).fields[0].field_type
                    update.add_column(path, kind)
                for path, field in widened:
                    kind = columns.iceberg_schema(pa.schema([field])).fields[0].field_type
                    update.update_column(path, field_type=kind)
                for path in optional:
                    update.make_column_optional(path)
        except CommitFailedException:
            pass
        table = catalog.load_table(opened, options, options.table)
    return table


Path = tuple[str, ...]
Fields = list[tuple[Path, "pa.Field[Any]"]]


def differences(table: Any, rows: Any, prefix: Path = ()) -> tuple[Fields, Fields, list[Path]]:
    """(columns that the table lacks, those whose type must be wider, required ones that the rows lack), also within
    structs. What cannot be made to fit is left out: the comparison that follows says so."""
    additions: Fields = []
    widened: Fields = []
    optional: list[Path] = []
    known = {field.name: field for field in table}
    for field in rows:
        path = (*prefix, field.name)
        mine = known.get(field.name)
        if mine is None:
            additions.append((path, field))
        elif isinstance(mine.type, pa.StructType) and isinstance(field.type, pa.StructType):
            more, wider, looser = differences(mine.type, field.type, path)
            additions += more
            widened += wider
            optional += looser
        elif not schemas.fits(field.type, mine.type) and schemas.fits(mine.type, field.type):
            widened.append((path, field))
    given = {field.name for field in rows}
    optional += [(*prefix, field.name) for field in table if not field.nullable and field.name not in given]
    return additions, widened, optional
