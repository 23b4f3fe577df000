"""Paimon's own Python library at work for the tests: run by its environment's Python, never imported by ours.

Reads requests from standard input, a JSON object a line, and answers each with one line: base64 of a pickle,
("ok", value) or ("error", text). `tests/servers/paimon.py` speaks to it.
"""

import base64
import json
import pickle
import sys
import traceback
from typing import Any

import pyarrow as pa
from pypaimon import CatalogFactory, Schema


def rows(warehouse: str, table: str) -> Any:
    found = CatalogFactory.create({"warehouse": warehouse}).get_table(table)
    builder = found.new_read_builder()
    splits = builder.new_scan().plan().splits()
    return builder.new_read().to_arrow(splits).to_pylist() if splits else []


def export(warehouse: str, table: str, out: str) -> None:
    """All rows as Parquet, a file for each split."""
    import pyarrow.parquet as pq

    builder = CatalogFactory.create({"warehouse": warehouse}).get_table(table).new_read_builder()
    read = builder.new_read()
    for number, split in enumerate(builder.new_scan().plan().splits()):
        pq.write_table(read.to_arrow([split]), f"{out}/{number}.parquet")


def referenced(warehouse: str, table: str) -> Any:
    """Every file that some snapshot needs, relative to the table."""
    from pypaimon.manifest.manifest_file_manager import ManifestFileManager
    from pypaimon.manifest.manifest_list_manager import ManifestListManager
    from pypaimon.utils.file_store_path_factory import canonical_data_file_path

    found = CatalogFactory.create({"warehouse": warehouse}).get_table(table)
    snapshots, names = found.snapshot_manager(), set()
    latest = snapshots.get_latest_snapshot()
    root = f"{found.table_path.rstrip('/')}/".removeprefix("file:")
    for number in range(1, latest.id + 1 if latest else 1):
        snapshot = snapshots.get_snapshot_by_id(number)
        names |= {f"manifest/{snapshot.base_manifest_list}", f"manifest/{snapshot.delta_manifest_list}"}
        metas = ManifestListManager(found).read_all(snapshot)
        names |= {f"manifest/{meta.file_name}" for meta in metas}
        for meta in ManifestListManager(found).read_delta(snapshot):
            for entry in ManifestFileManager(found).read(meta.file_name):
                place = tuple(entry.partition.values), entry.bucket, entry.file.file_name
                names.add(str(canonical_data_file_path(found, *place)).removeprefix("file:").removeprefix(root))
    return names


def create(warehouse: str, table: str, fields: list[Any], **more: Any) -> None:
    catalog = CatalogFactory.create({"warehouse": warehouse})
    catalog.create_database(table.partition(".")[0], True)
    schema = pa.schema([pa.field(name, getattr(pa, kind)(), null) for name, kind, null in fields])
    catalog.create_table(table, Schema.from_pyarrow_schema(schema, **more), False)


def append(warehouse: str, table: str, records: list[Any], times: int = 1) -> None:
    found = CatalogFactory.create({"warehouse": warehouse}).get_table(table)
    from pypaimon.schema.data_types import PyarrowFieldParser

    schema = PyarrowFieldParser.from_paimon_schema(found.fields)
    for _ in range(times):
        builder = found.new_batch_write_builder()
        write, commit = builder.new_write(), builder.new_commit()
        write.write_arrow(pa.Table.from_pylist(records, schema=schema))
        commit.commit(write.prepare_commit())
        write.close()
        commit.close()


def buckets(kinds: list[str], records: str, count: int) -> Any:
    """Encoded keys and their buckets, as Paimon has them."""
    from pypaimon.schema.data_types import AtomicType, DataField
    from pypaimon.table.row.generic_row import GenericRow, GenericRowSerializer
    from pypaimon.table.row.internal_row import RowKind
    from pypaimon.write.row_key_extractor import _bucket_from_hash, _hash_bytes_by_words

    fields = [DataField(index, f"c{index}", AtomicType(kind, True)) for index, kind in enumerate(kinds)]
    found = []
    for record in pickle.loads(base64.b64decode(records)):
        data = GenericRowSerializer.to_bytes(GenericRow(list(record), fields, RowKind.INSERT))
        found.append((data, _bucket_from_hash(_hash_bytes_by_words(data[4:]), count)))
    return found


CALLS: dict[str, Any] = {call.__name__: call for call in (rows, export, referenced, create, append, buckets)}


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        call = CALLS[request.pop("call")]
        try:
            answer = ("ok", call(**request))
        except Exception:  # noqa: BLE001  (told to the other side)
            answer = ("error", traceback.format_exc())
        print(base64.b64encode(pickle.dumps(answer)).decode(), flush=True)


main()
