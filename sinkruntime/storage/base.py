"""What sinks that write files need of a place that holds them; `local` and `s3` provide it.

Used by their writers and committers, which know no other difference between places.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import IO, Any

#: One staged file in a committable: JSON values. `path` is the final one, relative to the target; `size_bytes`;
#: `rows`; and what the storage needs to commit it.
Item = dict[str, Any]


class Standing(StrEnum):
    """Where a staged file stands."""

    STAGED = "staged"  # not visible, and can be committed
    PUBLISHED = "published"  # made visible by this very call
    LANDED = "landed"  # visible, with our size and checksum
    GONE = "gone"  # neither staged nor visible
    TAKEN = "taken"  # something else has its final name
    FENCED = "fenced"  # staged, and a fence stands against this order


@dataclass(frozen=True, slots=True)
class StagedEntry:
    """Something staged that `Storage.staged` found. `name` holds the writer's stem; `handle` is the storage's own."""

    name: str
    handle: Any


@dataclass(frozen=True, slots=True)
class Document:
    """A small file as it was read; `tag` names this version of it."""

    data: bytes
    tag: str


class OutputStream(io.RawIOBase):
    """What a format writes to. It never raises, and closing it ends nothing: a format's library may write from a
    destructor, where an error would end the whole process. `check` raises what went wrong."""

    def __init__(self, take: Callable[[memoryview], None]) -> None:
        super().__init__()
        self._take: Callable[[memoryview], None] | None = take
        self._failure: Exception | None = None
        self.size_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._take is not None:
            try:
                self._take(view)
            except Exception as error:  # noqa: BLE001  (raised by `check`)
                self._failure = error
                self.abandon()
        self.size_bytes += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.size_bytes

    def abandon(self) -> None:
        """Drop what still comes."""
        self._take = None

    def check(self) -> None:
        """Call it after each call of the format's library."""
        if self._failure is not None:
            raise self._failure


class Output(ABC):
    """One file being staged, written through `stream`; it ends in `finish` or `discard`."""

    stream: OutputStream

    @property
    def size_bytes(self) -> int:
        """What was written so far."""
        return self.stream.size_bytes

    @property
    def buffered_bytes(self) -> int:
        """What of it is held in memory."""
        return 0

    @abstractmethod
    def finish(self) -> Item:
        """Make it durable, invisible; say how to commit it."""

    @abstractmethod
    def discard(self) -> None:
        """Take it away, finished or not. Repeatable."""


class Storage(ABC):
    """A target directory of one sink. Connect in `open`; `close` may be called at any time, and twice."""

    @abstractmethod
    def open(self) -> None:
        """Connect; raises `TargetError` where the place cannot be reached or used."""

    @abstractmethod
    def close(self) -> None:
        """Release connections."""

    # --- the writer's side

    @abstractmethod
    def create(self, directory: str, name: str) -> Output:
        """Begin a file whose final path is `directory/name`."""

    @abstractmethod
    def prepared(self) -> None:
        """After the last `finish` of a writer: make what is staged survive a power cut."""

    # --- the committers' side

    @abstractmethod
    def standing(self, item: Item, order: tuple[int, int]) -> Standing:
        """Where a file stands, for a commit of this order."""

    @abstractmethod
    def publish(self, item: Item, order: tuple[int, int]) -> Standing:
        """Make it visible if it is staged: `PUBLISHED`; else where it stands. Raises `OSError` or `AnswerLost`."""

    @abstractmethod
    def settle(self, items: Sequence[Item]) -> None:
        """After `publish`: make it survive a power cut, then remove what is left in the staging place."""

    @abstractmethod
    def fence(self, item: Item, order: tuple[int, int], may_have_landed: bool) -> bool:
        """Refuse publications up to this order from now on; False: that cannot be done here."""

    @abstractmethod
    def discard(self, item: Item) -> None:
        """Remove what is staged of it. Never what is visible. Repeatable."""

    @abstractmethod
    def staged(self) -> Iterator[StagedEntry]:
        """All that this sink has staged."""

    @abstractmethod
    def remove(self, entries: Sequence[StagedEntry]) -> None:
        """Remove staged entries. Repeatable."""

    # --- small documents

    def exclusive(self) -> AbstractContextManager[None]:
        """Held while documents are changed, where the place has locks; `replace` compares in any case."""
        return nullcontext()

    @abstractmethod
    def read(self, path: str) -> Document | None:
        """A document, or None."""

    @abstractmethod
    def replace(self, path: str, data: bytes, expected: Document | None) -> bool:
        """Write a document in one step, if it still is `expected` (None: absent); False: it is not."""

    @abstractmethod
    def add(self, path: str, data: bytes) -> bool:
        """Write a document that nobody has written yet, in one step; False: there is one. It needs no `exclusive`."""

    @abstractmethod
    def names(self, directory: str) -> Sequence[str]:
        """Names of the documents in a directory; empty where there is none."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a document. Repeatable."""

    @abstractmethod
    def reader(self, path: str) -> IO[bytes]:
        """A visible file, open for reading at any place. Raises `FileNotFoundError`."""

    @abstractmethod
    def sample(self, extension: str) -> IO[bytes] | None:
        """Any visible file with this extension, open for reading; None: there is none."""

    @abstractmethod
    def modified_ms(self, path: str) -> int:
        """When a file or document was last changed, in ms since 1970."""

    @abstractmethod
    def uri(self, path: str) -> str:
        """A visible file's address as Spark writes it."""


class AnswerLost(Exception):
    """A publication was sent and its answer lost."""
