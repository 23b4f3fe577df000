"""What the tasks of maintenance share: the table as it is now, the time that is left, a snapshot that replaces files.

Made by `maintenance`. A snapshot that replaces is a commit like any other: the catalog takes it only on the snapshot
that was looked at, and who loses the race looks again, a few times, or gives up. It never wins over rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sinkruntime.api import SinkIdentity
from sinkruntime.errors import SinkjobError
from sinkruntime.sinks.iceberg import catalog, naming
from sinkruntime.sinks.iceberg.evidence import head_of
from sinkruntime.sinks.iceberg.options import Options
from sinkruntime.sinks.iceberg.snapshot import Conflict, Content, Draft, Unknown

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import ManifestEntry, ManifestFile
    from pyiceberg.table import Table

#: Lost races of one task; then it is given up until its next turn.
ATTEMPTS_MAX = 5

#: What the next snapshot of the branch holds, or None: there is no use in it any more.
Attempt = Callable[["Table", Draft], Content | None]


class Limit:
    """Seconds in which work may be begun."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    @property
    def is_over(self) -> bool:
        return self._clock() >= self._end


@dataclass(frozen=True, slots=True)
class Work:
    """One turn of maintenance."""

    options: Options
    identity: SinkIdentity
    catalog: Catalog
    limit: Limit
    now_seconds: float  # since 1970

    @property
    def branch(self) -> str:
        return self.options.branch

    def load(self) -> Table:
        """The table as it is now."""
        return catalog.load_table(self.catalog, self.options, self.options.table)

    def replace(self, attempt: Attempt) -> bool:
        """Make a snapshot of what `attempt` says of the branch as it is; whether it was made. False is certain.

        Raises `Unknown` where the answer was lost: then nothing of it may be removed.
        """
        from pyiceberg.table.snapshots import Operation

        for _ in range(ATTEMPTS_MAX):
            if self.limit.is_over:
                return False
            table = self.load()
            draft = Draft(table, self.branch, naming.upkeep_folder(self.identity))
            try:
                content = attempt(table, draft)
                if content is None or self.limit.is_over:
                    draft.discard()
                    return False
                draft.commit(content, Operation.REPLACE)
            except Conflict:
                if self._has(draft):
                    return True
                draft.discard()
            except (OSError, SinkjobError):
                draft.discard()
                raise
            else:
                return True
        return False

    def _has(self, draft: Draft) -> bool:
        """Whether a draft that was turned down has landed all the same."""
        try:
            return draft.is_in(self.load())
        except (OSError, SinkjobError) as error:
            raise Unknown(f"turned down, and the table cannot be read: {error}") from error


def live(table: Table, branch: str) -> list[ManifestEntry]:
    """All files of the branch, data and deletes."""
    head = head_of(table.metadata, branch)
    manifests = [] if head is None else head.manifests(table.io)
    return [entry for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io)]


def files_of(manifest: ManifestFile) -> int:
    """How many files a manifest still has."""
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
