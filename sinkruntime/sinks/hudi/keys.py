"""Record keys and partition paths, as Hudi's simple and complex key generators write them.

Called by the writers, for whole batches. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute

from sinkruntime.errors import TargetError
from sinkruntime.sinks.hudi.metadata import key_generator
from sinkruntime.sinks.hudi.options import Options
from sinkruntime.storage.names import NULL_PARTITION, escape, text_of

#: Its stubs know neither lists of arrays nor arrays of any kind.
pc: Any = pyarrow.compute

#: What a directory's name cannot hold as it is.
_SPECIAL = "/"
_DOTS = (".", "..")
#: What Hudi writes for an empty value in a key of several parts.
_EMPTY = "__empty__"


def record_keys(batch: pa.RecordBatch, options: Options) -> Any:
    """The record key of each row: the value itself, or `a:1,b:2` of the complex key generator.

    Raises `TargetError` (`NullInKey`) where a row has none: Hudi has no record without a key.
    """
    names = options.record_key
    texts = [_texts(batch.column(name)) for name in names]
    named = len(names) > 1 or key_generator(options) == "COMPLEX"
    for name, text in zip(names, texts, strict=True):
        if text.null_count or (not named and pc.any(pc.equal(text, "")).as_py()):
            message = f"column `{name}` of the record key: a row has no value, or an empty one"
            raise TargetError("NullInKey", message, path="options.recordKey")
    if not named:
        return texts[0]
    filled = [pc.if_else(pc.equal(text, ""), _EMPTY, text) for text in texts]
    parts = [pc.binary_join_element_wise(f"{name}:", text, "") for name, text in zip(names, filled, strict=True)]
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, ",")


def by_partition(batch: pa.RecordBatch, options: Options) -> Iterator[tuple[str, pa.RecordBatch]]:
    """(partition path, its rows), the rows in their order."""
    if batch.num_rows == 0:
        return
    if not options.partition_by:
        yield "", batch
        return
    paths = _paths(batch, options).dictionary_encode()
    if len(paths.dictionary) == 1:
        yield paths.dictionary[0].as_py(), batch
        return
    order = pc.array_sort_indices(paths.indices)
    ordered = batch.take(order)
    counts = {item["values"]: item["counts"] for item in pc.value_counts(paths.indices).to_pylist()}
    start = 0
    for code in sorted(counts):
        yield paths.dictionary[code].as_py(), ordered.slice(start, counts[code])
        start += counts[code]


def _paths(batch: pa.RecordBatch, options: Options) -> Any:
    parts = []
    for name in options.partition_by:
        encoded = batch.column(name).dictionary_encode("encode")
        values = [directory(name, value, options) for value in encoded.dictionary.to_pylist()]
        parts.append(pa.array(values, pa.string()).take(encoded.indices))
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, "/")


def directory(column: str, value: Any, options: Options) -> str:
    """One level of a partition path."""
    text = text_of(value)
    if options.url_encode:
        text = escape(text)
    elif _SPECIAL in text:
        message = f"column `{column}`: the value {text!r} cannot be a directory; use `urlEncode: true`"
        raise TargetError("InvalidPartitionValue", message, path="options.urlEncode")
    if text in _DOTS or (text[:1] in (".", "_") and text != NULL_PARTITION and not options.hive_style):
        message = f"column `{column}`: readers skip a directory named {text!r}; use `hiveStyle: true`"
        raise TargetError("InvalidPartitionValue", message, path="options.hiveStyle")
    text = text or NULL_PARTITION
    return f"{column}={text}" if options.hive_style else text


def _texts(column: Any) -> Any:
    """Values as Java prints them: `1`, `true`, `2026-11-21`."""
    return column if pa.types.is_string(column.type) else column.cast(pa.string())
