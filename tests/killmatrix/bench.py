"""What the kill matrix asks of a kind of sink; one module here per kind, named as `--sink` has it, with a `BENCH`.

A bench writes the sinks' part of the manifest, starts the servers that they need, and reads the targets back without
any code of the product. Later sinks join by adding a module.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.killmatrix.rows import Rows
from tests.killmatrix.tree import HarnessError


class Bench(ABC):
    """Targets of one kind, below `folder` where they are files. A context manager: servers run inside."""

    #: Whether runs may end by themselves because of what `disturb` did; they are then started again.
    disturbs = False

    def __init__(self, folder: Path, chance: random.Random, bulk: bool = False) -> None:
        """`bulk`: the rows are many (see `bulk`), and the options in `sinks` should suit that."""
        self.folder = folder
        self.chance = chance
        self.bulk = bulk
        self.stack = ExitStack()
        self.disturbances = 0

    def __enter__(self) -> Bench:
        self.prepare()
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def prepare(self) -> None:  # noqa: B027  (most benches have nothing to do)
        """Start servers (on `stack`), make what the targets need."""

    @abstractmethod
    def sinks(self) -> list[dict[str, Any]]:
        """`spec.sinks`: two (one may do if `bulk`), each of which takes every row with all its columns."""

    def environment(self) -> Mapping[str, str]:
        """What a run needs in its environment."""
        return {}

    @abstractmethod
    def read(self, sink: str) -> Rows:
        """All rows that a reader of the target sees now. Raises AssertionError where what was visible is gone."""

    @abstractmethod
    def leftovers(self, ledger_id: str) -> Iterable[str]:
        """What is staged and was never committed or removed, and temporary files; asked after the last run."""

    def differences(self, expected: Rows) -> Iterable[str]:
        """What another reader, too slow to be asked after every kill, sees otherwise; asked after the last run."""
        return ()

    def export(self, sink: str, out: Path) -> None:
        """Write all that the target's own engine sees now as Parquet below `out`, an empty folder, with the columns
        of `rows.COLUMNS`; asked once, after the last run of a bulk matrix."""
        raise HarnessError(f"the bench of sink {sink} is not made for --rows")

    def disturb(self) -> None:  # noqa: B027  (most benches have nothing to do)
        """Called often while a job runs: cut or mend connections by chance."""

    def calm(self) -> None:  # noqa: B027  (most benches have nothing to do)
        """End every disturbance."""

    def told(self) -> str:
        """What `disturb` has done, for the last lines."""
        return f"{self.disturbances} disturbances"
