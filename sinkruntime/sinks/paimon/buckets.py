"""Which bucket a row belongs to: Paimon's hash of the binary row of its bucket key, for whole columns at once.

Used by the writer. numpy comes with Spark's own requirements. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sinkruntime.sinks.paimon.binary_row import COMPACT_DIGITS_MAX, INLINE_BYTES_MAX, header_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Words = NDArray[np.uint32]

_SEED = 42


def can_hash(kind: pa.DataType) -> bool:
    """Whether a column of this type may be part of a bucket key here."""
    types = pa.types
    if types.is_decimal(kind):
        return bool(kind.precision <= COMPACT_DIGITS_MAX)
    return any((types.is_string(kind), types.is_integer(kind), types.is_date(kind), types.is_boolean(kind)))


def buckets_of(columns: list[Any], count: int) -> NDArray[np.int32]:
    """The bucket of each row, by its bucket key's columns (arrays without nulls)."""
    import numpy as np

    rows = len(columns[0])
    if count == 1:
        return np.zeros(rows, np.int32)
    hashed = _hash([_Column(column) for column in columns], rows).view(np.int32).astype(np.int64)
    return np.abs(np.fmod(hashed, count)).astype(np.int32)


class _Column:
    """One column of the key as words of four bytes: two in the field, and those of long texts after all fields."""

    def __init__(self, array: Any) -> None:
        import numpy as np

        self.long_words = np.zeros(len(array), np.int64)
        if pa.types.is_string(array.type):
            self._text(array)
        else:
            self.field = _fixed(array)

    def _text(self, array: Any) -> None:
        import numpy as np

        array = array.cast(pa.large_string())
        _, offsets, data = array.buffers()
        ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
        self._starts, self.lengths = ends[:-1], np.diff(ends)
        text = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        self._bytes = np.concatenate([text, np.zeros(16, np.uint8)])
        short = self.lengths <= INLINE_BYTES_MAX
        self.long_words = np.where(short, 0, (self.lengths + 7) // 8 * 2)
        inline = self._piece(np.arange(len(array)), 0, 8)
        inline[:, 7] = 0x80 | (self.lengths & 0x7F)
        self.field = np.where(short[:, None], inline.view(np.uint32), 0)

    def point(self, offset: Any) -> None:
        """Long texts: where in the row they stand, and how long they are."""
        import numpy as np

        long = self.long_words > 0
        if long.any():
            self.field[long, 0] = self.lengths[long].astype(np.uint32)
            self.field[long, 1] = offset[long].astype(np.uint32)

    def word(self, rows: Any, number: int) -> Words:
        """A word of the long texts of these rows."""
        import numpy as np

        words: Words = self._piece(rows, 4 * number, 4).view(np.uint32)[:, 0]
        return words

    def _piece(self, rows: Any, start: int, size: int) -> Any:
        """`size` bytes of each row's text from `start`, zero after its end."""
        import numpy as np

        at = start + np.arange(size)
        inside = at[None, :] < self.lengths[rows][:, None]
        places = np.where(inside, self._starts[rows][:, None] + at[None, :], len(self._bytes) - 1)
        return np.ascontiguousarray(self._bytes[places])


def _fixed(array: Any) -> Words:
    import numpy as np

    kind = array.type
    if pa.types.is_decimal(kind):
        # As 128-bit numbers, of which the lower half is the value.
        wide = array.cast(pa.decimal128(kind.precision, kind.scale))
        halves = np.frombuffer(wide.buffers()[1], np.int64)[2 * wide.offset : 2 * (wide.offset + len(wide)) : 2]
        values = np.ascontiguousarray(halves)
    elif pa.types.is_date(kind):
        values = array.cast(pa.int32()).to_numpy(zero_copy_only=False)
    else:
        values = array.to_numpy(zero_copy_only=False)
    place = np.zeros((len(array), 8), np.uint8)
    width = values.dtype.itemsize
    place[:, :width] = np.ascontiguousarray(values).view(np.uint8).reshape(len(array), width)
    return place.view(np.uint32)


def _hash(columns: list[_Column], rows: int) -> Words:
    import numpy as np

    fixed_bytes = header_bytes(len(columns)) + 8 * len(columns)
    offset = np.full(rows, fixed_bytes, np.int64)
    for column in columns:
        column.point(offset)
        offset = offset + 4 * column.long_words
    state = np.full(rows, _SEED, np.uint32)
    for _ in range(header_bytes(len(columns)) // 4):
        state = _mix(state, np.zeros(rows, np.uint32))
    for column in columns:
        for word in (0, 1):
            state = _mix(state, np.ascontiguousarray(column.field[:, word]))
    for column in columns:
        for number in range(int(column.long_words.max(initial=0))):
            at = np.flatnonzero(column.long_words > number)
            state[at] = _mix(state[at], column.word(at, number))
    return _finish(state, offset.astype(np.uint32))


def _mix(state: Words, word: Words) -> Words:
    """One step of MurmurHash3 (32 bits)."""
    import numpy as np

    word = word * np.uint32(0xCC9E2D51)
    word = (word << np.uint32(15)) | (word >> np.uint32(17))
    state = state ^ (word * np.uint32(0x1B873593))
    state = (state << np.uint32(13)) | (state >> np.uint32(19))
    return state * np.uint32(5) + np.uint32(0xE6546B64)


def _finish(state: Words, length: Words) -> Words:
    import numpy as np

    state = state ^ length
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ (state >> np.uint32(shift))) * np.uint32(factor)
    return state ^ (state >> np.uint32(16))
