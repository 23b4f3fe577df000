"""Many Delta tables by one sink: what `sinkruntime.tables.routing` asks of a format, and the writer of such a sink.

The book is a table without rows at `_sinkjob/routes-<digest>` in the folder before the first `${field}`. Below it
writers leave receipts: an empty file for each table in which they are about to stage.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import pyarrow as pa

from sinkruntime.api import CommitRequest, Committable, SinkIdentity, SinkWriter, WriterContext
from sinkruntime.sinks.delta import names, target
from sinkruntime.sinks.delta import table as tables
from sinkruntime.sinks.delta.committer import DeltaCommitter
from sinkruntime.sinks.delta.options import Maintenance, Options, Write
from sinkruntime.sinks.delta.place import Place
from sinkruntime.sinks.delta.upsert import ChangesWriter, MergeCommitter
from sinkruntime.sinks.delta.writer import DeltaWriter
from sinkruntime.storage.answers import answering
from sinkruntime.storage.names import PRIVATE, owner_digest
from sinkruntime.tables.routed_writer import RoutedWriter, Routes
from sinkruntime.tables.routing import TABLES_PROPERTY, Book, Mark, Origin

if TYPE_CHECKING:
    from deltalake import DeltaTable

#: Committers of tables that are kept ready: they remember what they have committed.
COMMITTERS_MAX = 256
_BOOK_COLUMNS = pa.schema([pa.field("nothing", pa.string())])


def book_options(options: Options, identity: SinkIdentity) -> Options:
    """The book as a table of the sink's own."""
    only: dict[str, object] = {
        "path": f"{options.folder}{PRIVATE}/routes-{owner_digest(identity)}",
        "write": Write.APPEND,
        "key": (),
        "order_by": (),
        "delete_when": None,
        "omit": (),
        "partition_by": (),
        "merge_schema": False,
        "table_properties": {},
        "maintenance": Maintenance(),
    }
    return options.model_copy(update=only)


def routes(options: Options) -> Routes:
    template = options.template
    assert template is not None
    omit = () if options.write is Write.UPSERT else options.omit  # a writer of changes leaves them out itself
    return Routes(template, "options.path", options.max_tables, options.max_open_files, omit)


class BookCommitter(DeltaCommitter):
    """Commits what the book says of the tables: a property and the evidence in one version."""

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            with answering(request):
                self._commit(request)

    def _write(self, request: CommitRequest, table: DeltaTable) -> None:
        properties = self._properties(request.lineage, [(tables.app_id(self._identity), None)])
        with self._one_version(table, request.lineage.checkpoint):
            table.alter.set_table_properties(
                {TABLES_PROPERTY: request.committable["book"]}, raise_if_not_exists=False, commit_properties=properties
            )


class DeltaTables:
    """The tables of a routed sink, and its book."""

    def __init__(self, options: Options, identity: SinkIdentity) -> None:
        self._options = options
        self._identity = identity
        self._book_options = book_options(options, identity)
        self._book_place = Place(self._book_options)
        self._committers: OrderedDict[str, DeltaCommitter] = OrderedDict()

    @property
    def book_name(self) -> str:
        """Where the book is."""
        return self._book_place.uri

    def close(self) -> None:
        self._committers.clear()

    def prepare(self, rows: pa.Schema) -> None:
        """Check the rows against the template, and make the book. Other tables are made when the first row comes."""
        many = routes(self._options)
        many.template.check(rows, many.path)
        written = tables.without(rows, self._options.omit)
        tables.check_types(written)
        if self._options.create_table:
            tables.check_creation(self._options, written)
        if self._options.write is Write.UPSERT:
            self._options.changes.check(rows)
        if tables.find(self._book_place) is None:
            tables.create(self._book_place, self._book_options, _BOOK_COLUMNS)

    def book(self) -> Book | None:
        table = tables.find(self._book_place)
        if table is None:
            return None
        proved, found = tables.evidence_of(self._book_place, table, self._identity), table.metadata()
        return Book.read(proved, str(found.id), found.configuration.get(TABLES_PROPERTY))

    def book_committer(self) -> BookCommitter:
        return BookCommitter(self._book_options, self._identity)

    def book_committable(self, book: Book, tables: str) -> Committable:
        return {"files": [], "tables": [book.target], "columns": {}, "book": tables}

    def committer(self, name: str) -> DeltaCommitter:
        found = self._committers.get(name)
        if found is None:
            if len(self._committers) >= COMMITTERS_MAX:
                self._committers.popitem(last=False)
            made = MergeCommitter if self._options.write is Write.UPSERT else DeltaCommitter
            found = self._committers[name] = made(self._options.for_table(name), self._identity)
        return found

    def identities(self, committable: Committable) -> set[str]:
        return set(committable["tables"])

    def mark(self, name: str) -> Mark | None:
        place = Place(self._options.for_table(name))
        table = tables.find(place)
        if table is None:
            return None
        return Mark(str(table.metadata().id), tables.evidence_of(place, table, self._identity))

    def origins(self) -> list[Origin]:
        home = names.home(self._identity, Write.APPEND)
        found = [names.origin_of(name) for name in self._book_place.directories(home)]
        return [origin for origin in found if origin is not None]

    def receipts(self, origin: Origin) -> list[str]:
        return sorted(unquote(path.rpartition("/")[2]) for path in self._receipts(origin))

    def forget(self, origin: Origin) -> None:
        self._book_place.remove(self._receipts(origin))
        self._book_place.prune(names.directory(self._identity, Write.APPEND, *origin))

    def _receipts(self, origin: Origin) -> list[str]:
        folder = names.directory(self._identity, Write.APPEND, *origin)
        return [found.path for found in self._book_place.files(folder)]


def routed_writer(options: Options, context: WriterContext) -> SinkWriter:
    """The writer of a task that routes."""
    book = Place(book_options(options, context.identity))

    def open_table(name: str, columns: pa.Schema) -> DeltaWriter:
        one = options.for_table(name)
        shape = target.recent(one, columns)
        made = ChangesWriter if options.write is Write.UPSERT else DeltaWriter
        writer = made(one, replace(context, schema=columns), lambda: shape)
        writer.open()
        _leave_receipt(book, name, context)
        return writer

    return RoutedWriter(routes(options), context, open_table)


def _leave_receipt(book: Place, name: str, context: WriterContext) -> None:
    folder = names.directory_of(context.identity, Write.APPEND, context.lineage)
    with contextlib.suppress(FileExistsError):  # another task of this checkpoint was first
        book.create(f"{folder}/{quote(name, safe='')}").close()
