"""Arrow batches as PostgreSQL's binary COPY stream, column by column and never row by row.

The writers call it. Columns become pieces; neighbours of one width are laid side by side, and Arrow joins the rest row
by row in one pass. numpy is imported here when the first batch comes: only executors need it, where Spark brings it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from sinkruntime.errors import TargetError
from sinkruntime.sinks.jdbc.database import Column
from sinkruntime.sinks.jdbc.json_text import json_texts

HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
TRAILER = struct.pack(">h", -1)
#: Of Arrow data at once: what is encoded may be some times larger, and one array of bytes holds 2 GiB.
SLICE_BYTES_MAX = 64 * 1024**2
#: PostgreSQL counts from 2000-01-01.
EPOCH_DAYS = 10_957
EPOCH_MICROSECONDS = EPOCH_DAYS * 86_400 * 1_000_000
#: numeric has four decimal digits in each of its own.
DIGITS = 4
_POSITIVE, _NEGATIVE = 0x0000, 0x4000
_FIXED = {
    "bool": (pa.uint8(), "u1"),
    "int2": (pa.int16(), ">i2"),
    "int4": (pa.int32(), ">i4"),
    "int8": (pa.int64(), ">i8"),
    "float4": (pa.float32(), ">f4"),
    "float8": (pa.float64(), ">f8"),
}


#: A part of every row of a batch: of one width, as numpy's form and values (or one value); or an Arrow array of bytes.
Piece: TypeAlias = "tuple[str, Any] | pa.Array[Any]"


def encode(batch: pa.RecordBatch, columns: Sequence[Column]) -> Iterator[memoryview]:
    """The rows of a batch, without header and trailer. Raises `TargetError` for a value that its column cannot hold."""
    parts = max(1, -(-batch.nbytes // SLICE_BYTES_MAX))
    size = max(1, -(-batch.num_rows // parts))
    for start in range(0, batch.num_rows, size):
        yield _encode(batch.slice(start, size), columns)


def _encode(batch: pa.RecordBatch, columns: Sequence[Column]) -> memoryview:
    pieces: list[Piece] = [(">i2", len(columns))]
    for values, column in zip(batch.columns, columns, strict=True):
        try:
            pieces += _field(values, column.kind)
        except (pa.ArrowInvalid, ValueError, OverflowError) as error:
            message = f"column `{column.name}` ({column.declared}) cannot hold a value: {error}"
            raise TargetError("RowsRefused", message, path="options.table") from error
    arrays: list[Any] = []
    for is_array, neighbours in groupby(pieces, lambda piece: isinstance(piece, pa.Array)):
        run = list(neighbours)
        arrays += run if is_array else [_binary(_cells(run, batch.num_rows))]  # the join is paid by array
    joined: Any = pc.binary_join_element_wise(*arrays, b"")
    _, offsets, data = joined.buffers()
    first, last = (struct.unpack_from("<i", offsets, 4 * (joined.offset + at))[0] for at in (0, len(joined)))
    return memoryview(data)[first:last]


def _cells(pieces: Sequence[Any], count: int) -> Any:
    """Pieces of one width side by side, as bytes: rows × width."""
    import numpy as np

    rows: Any = np.empty(count, [(str(at), form) for at, (form, _) in enumerate(pieces)])
    for at, (_, values) in enumerate(pieces):
        rows[str(at)] = values
    return rows.view(np.uint8).reshape(count, rows.itemsize)


def _binary(cells: Any, offsets: Any = None) -> pa.Array[Any]:
    """Bytes as an array of binary values; without offsets each row of `cells` is one."""
    import numpy as np

    if offsets is None:
        count, width = cells.shape
        offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(cells)])


def _field(values: Any, kind: str) -> list[Piece]:
    """The pieces of one column."""
    if kind in _FIXED:
        arrow, form = _FIXED[kind]
        return _fixed(form, _numbers(values.cast(arrow)), values)
    if kind == "date":
        return _fixed(">i4", _numbers(values.cast(pa.int32())) - EPOCH_DAYS, values)
    if kind in ("timestamp", "timestamptz"):
        zone = values.type.tz
        micros = _numbers(values.cast(pa.timestamp("us", zone)).cast(pa.int64()))
        return _fixed(">i8", micros - EPOCH_MICROSECONDS, values)
    if kind == "numeric":
        return _numeric(values)
    if kind == "uuid":
        return _uuid(values)
    if pa.types.is_nested(values.type):
        values = json_texts(values)
    return _bytes(values, b"\x01" if kind == "jsonb" else b"")


def _numbers(values: Any) -> Any:
    """Values as numpy has them; what is null is anything."""
    import numpy as np

    width = values.type.bit_width // 8
    buffer = values.buffers()[1]
    form = f"{'f' if pa.types.is_floating(values.type) else 'u' if values.type == pa.uint8() else 'i'}{width}"
    return np.frombuffer(buffer, form, len(values), values.offset * width)


def _fixed(form: str, numbers: Any, values: Any) -> list[Piece]:
    """Values of one width each: length and value."""
    import numpy as np

    return _unless_null([(">i4", np.dtype(form).itemsize), (form, numbers)], values)


def _unless_null(pieces: list[Piece], values: Any) -> list[Piece]:
    """Pieces of which the first is the length; a null is the length -1 alone, and they become one array."""
    import numpy as np

    if values.null_count == 0:
        return pieces
    cells = _cells(pieces, len(values))
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    kept = np.ones(cells.shape, bool)
    kept[~valid, 4:] = False
    cells[~valid, :4] = 0xFF
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.where(valid, cells.shape[1], 4), out=offsets[1:])
    return [_binary(cells[kept], offsets)]


def _bytes(values: Any, prefix: bytes) -> list[Piece]:
    """Values of any length: their lengths (and a prefix), and themselves."""
    data: Any = values.cast(pa.binary())
    lengths = pc.fill_null(pc.binary_length(data), 0).to_numpy(zero_copy_only=False)
    pieces: list[Piece] = [(">i4", lengths + len(prefix)), *(("u1", byte) for byte in prefix)]
    return [*_unless_null(pieces, values), data if data.null_count == 0 else pc.fill_null(data, b"")]


def _uuid(values: Any) -> list[Piece]:
    import numpy as np

    plain: Any = pc.replace_substring(pc.fill_null(values.cast(pa.string()), "0" * 32), "-", "")
    if not pc.all(pc.match_substring_regex(plain, "^[0-9a-fA-F]{32}$")).as_py():
        raise ValueError("not every text is a UUID")
    data = np.frombuffer(bytes.fromhex("".join(plain.to_pylist())), np.dtype("V16"))
    return _fixed("V16", data, values)


def _numeric(values: Any) -> list[Piece]:
    """Decimals as numeric: a header and digits of base 10,000, which are cut off from a number of 160 bits."""
    import numpy as np

    if not pa.types.is_decimal(values.type):
        values = values.cast(pa.decimal128(20, 0))
    precision, scale = values.type.precision, values.type.scale
    fraction, whole = -(-scale // DIGITS), -(-(precision - scale) // DIGITS)
    count = max(1, fraction + whole)
    limbs, negative = _limbs(values, 10 ** (fraction * DIGITS - scale))
    digits: list[Any] = []
    for _ in range(count):
        digit = np.zeros(len(values), np.uint64)
        for limb in range(len(limbs) - 1, -1, -1):  # a long division, the highest limb first
            part = (digit << np.uint64(32)) | limbs[limb]
            limbs[limb], digit = part // np.uint64(10_000), part % np.uint64(10_000)
        digits.insert(0, digit)  # the last one is cut off first
    sign = np.where(negative, _NEGATIVE, _POSITIVE)
    header = [(">i4", 8 + 2 * count), (">i2", count), (">i2", count - fraction - 1), (">u2", sign), (">u2", scale)]
    return _unless_null([*header, *((">u2", digit) for digit in digits)], values)


def _limbs(values: Any, factor: int) -> tuple[list[Any], Any]:
    """The absolute unscaled values times `factor` (at most 1000) in five limbs of 32 bits, the lowest first; signs."""
    import numpy as np

    words = np.frombuffer(values.buffers()[1], "<u8").reshape(-1, 2)[values.offset : values.offset + len(values)]
    low, high = words[:, 0].copy(), words[:, 1].copy()
    if values.null_count:
        null = ~values.is_valid().to_numpy(zero_copy_only=False)
        low[null] = high[null] = 0
    negative = (high >> np.uint64(63)).astype(bool)
    carry = (low == 0).astype(np.uint64)
    low = np.where(negative, ~low + np.uint64(1), low)
    high = np.where(negative, ~high + carry, high)
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    limbs = [low & mask, low >> shift, high & mask, high >> shift, np.zeros(len(values), np.uint64)]
    rest = np.zeros(len(values), np.uint64)
    for place, limb in enumerate(limbs):
        part = limb * np.uint64(factor) + rest
        limbs[place], rest = part & mask, part >> shift
    return limbs, negative
