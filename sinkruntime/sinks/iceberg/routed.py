"""Many Iceberg tables by one sink: what `sinkruntime.tables.routing` asks of a format, and the writer of such a sink.

The book is the table `sinkjob_routes_<digest>` in the namespace before the first `${field}`; it never has rows. Where
its own data would lie writers leave receipts: an empty file for each table in which they are about to stage.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import pyarrow as pa

from sinkruntime.api import Committable, SinkIdentity, SinkWriter, WriterContext
from sinkruntime.errors import TargetError
from sinkruntime.sinks.iceberg import catalog, evidence, naming, sweep, target
from sinkruntime.sinks.iceberg.changes import ChangesWriter
from sinkruntime.sinks.iceberg.committer import IcebergCommitter
from sinkruntime.sinks.iceberg.maintenance import maintain
from sinkruntime.sinks.iceberg.options import MAIN, Maintenance, Options
from sinkruntime.sinks.iceberg.staging import Folders
from sinkruntime.sinks.iceberg.upkeep import Limit
from sinkruntime.sinks.iceberg.writer import IcebergWriter
from sinkruntime.spec.quantities import Duration
from sinkruntime.tables.routed_writer import RoutedWriter, Routes
from sinkruntime.tables.routing import TABLES_PROPERTY, Book, Mark, Origin

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

#: Committers of tables that are kept ready.
COMMITTERS_MAX = 256
#: The book is committed to as often as all tables together, and nobody else looks after it.
BOOK_UPKEEP = Maintenance(expire_every=100, expire_age=Duration.parse("1h"), keep_snapshots=10)
BOOK_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "comment": "where the tables of a routed sink stand; it has no rows",
}
_BOOK_COLUMNS = pa.schema([pa.field("nothing", pa.string())])


def book_options(options: Options, identity: SinkIdentity) -> Options:
    """The book as a table of the sink's own."""
    assert options.template is not None
    before = options.table.partition("${")[0].rpartition(".")[0]
    only = {
        "table": f"{before}.sinkjob_routes_{naming.owner_digest(identity)}",
        "branch": MAIN,
        "partition_by": (),
        "sort_by": (),
        "omit": (),
        "empty_checkpoints": 1,
        "table_properties": BOOK_PROPERTIES,
        "maintenance": BOOK_UPKEEP,
    }
    return options.model_copy(update=only)


def routes(options: Options) -> Routes:
    template = options.template
    assert template is not None
    omit = () if options.keyed else options.omit  # a writer of changes leaves them out itself
    return Routes(template, "options.table", options.max_tables, options.max_open_files, omit)


class IcebergTables:
    """The tables of a routed sink, and its book."""

    def __init__(self, options: Options, identity: SinkIdentity) -> None:
        self._options = options
        self._identity = identity
        self._book_options = book_options(options, identity)
        self._catalog: Catalog | None = None
        self._committers: OrderedDict[str, IcebergCommitter] = OrderedDict()

    @property
    def book_name(self) -> str:
        """The book's own table."""
        return self._book_options.table

    def close(self) -> None:
        self._committers.clear()
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    def prepare(self, rows: pa.Schema) -> None:
        """Check the rows against the template, and make the book. Other tables are made when the first row comes."""
        many = routes(self._options)
        many.template.check(rows, many.path)
        written = target.written(self._options, rows)
        if self._options.create_table:
            target.layout(self._options, written)
        if self._options.keyed:
            self._options.changes.check(rows)
        if self._load(self._book_options) is None:
            target.create(self._opened(), self._book_options, _BOOK_COLUMNS)

    def book(self) -> Book | None:
        table = self._load(self._book_options)
        if table is None:
            return None
        marker = evidence.read_marker(table.metadata, self._identity, MAIN)
        text = table.metadata.properties.get(TABLES_PROPERTY)
        return Book.read(marker.checkpoint, str(table.metadata.table_uuid), text)

    def book_committer(self) -> IcebergCommitter:
        return IcebergCommitter(self._book_options, self._identity, self._opened)

    def book_committable(self, book: Book, tables: str) -> Committable:
        return {"parts": [], "properties": {TABLES_PROPERTY: tables}}

    def committer(self, name: str) -> IcebergCommitter:
        found = self._committers.get(name)
        if found is None:
            if len(self._committers) >= COMMITTERS_MAX:
                self._committers.popitem(last=False)
            found = IcebergCommitter(self._options.for_table(name), self._identity, self._opened)
            self._committers[name] = found
        return found

    def identities(self, committable: Committable) -> set[str]:
        return {part["table"] for part in committable["parts"]}

    def mark(self, name: str) -> Mark | None:
        table = self._load(self._options.for_table(name))
        if table is None:
            return None
        marker = evidence.read_marker(table.metadata, self._identity, self._options.branch)
        return Mark(str(table.metadata.table_uuid), marker.checkpoint)

    def origins(self) -> list[Origin]:
        table = self._load(self._book_options)
        return [] if table is None else sweep.origins(table, self._identity)

    def receipts(self, origin: Origin) -> list[str]:
        table = self._load(self._book_options)
        if table is None:
            return []
        root, _, folder = _receipts_of(table, self._identity, origin).rpartition("/")
        return sorted(unquote(name) for name in Folders(table.io, root).files(folder))

    def forget(self, origin: Origin) -> None:
        table = self._load(self._book_options)
        if table is not None:
            sweep.remove(table, self._identity, origin)

    def _opened(self) -> Catalog:
        if self._catalog is None:
            self._catalog = catalog.open_catalog(self._options)
        return self._catalog

    def _load(self, options: Options) -> Table | None:
        try:
            return catalog.load_table(self._opened(), options, options.table)
        except TargetError as error:
            if error.reason not in ("TableMissing", "CatalogMissing"):
                raise
            return None


def routed_writer(options: Options, context: WriterContext) -> SinkWriter:
    """The writer of a task that routes."""

    def open_table(name: str, columns: pa.Schema) -> IcebergWriter:
        return _open_table(options, name, replace(context, schema=columns))

    return RoutedWriter(routes(options), context, open_table)


def _open_table(options: Options, name: str, context: WriterContext) -> IcebergWriter:
    """The writer of one table, which is made or evolved first where that is wanted; the receipt is there after that."""
    one = options.for_table(name)
    writer = (ChangesWriter if options.keyed else IcebergWriter)(one, context)
    try:
        writer.open()
    except TargetError as error:
        missing = error.reason == "TableMissing" and options.create_table
        if not missing and not (error.reason == "SchemaMismatch" and options.evolve_schema):
            raise
        target.prepare(one, context.schema)
        writer.open()
    _leave_receipt(options, name, context)
    return writer


def _leave_receipt(options: Options, name: str, context: WriterContext) -> None:
    book = book_options(options, context.identity)
    table = catalog.recent_table(book, book.table)
    at = context.lineage
    folder = _receipts_of(table, context.identity, (at.checkpoint, at.epoch))
    with table.io.new_output(f"{folder}/{quote(name, safe='')}").create(overwrite=True):
        pass


def _receipts_of(table: Table, identity: SinkIdentity, origin: Origin) -> str:
    return naming.stage_folder(table.location_provider().data_path, identity, *origin)


def maintain_routed(options: Options, identity: SinkIdentity, checkpoint: int, names: Sequence[str]) -> None:
    """After a commit: what the options want of the tables that it wrote to, and the book's own upkeep."""
    limit = Limit(options.maintenance.time_limit.seconds)
    for name in names:
        maintain(options.for_table(name), identity, checkpoint, limit)
    maintain(book_options(options, identity), identity, checkpoint)
