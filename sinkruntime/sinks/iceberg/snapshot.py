"""A new snapshot of a table: its manifests and manifest list are written, and the catalog is asked to accept it.

Used by the committer, and by what maintains the table. The catalog accepts it only if table and branch are exactly as
in the metadata that was looked at: requirements of the one request, never a check before it. pyiceberg's own
transactions are not used, because they move a stale commit onto the new head by themselves.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sinkruntime.errors import TargetError
from sinkruntime.sinks.iceberg.evidence import head_of
from sinkruntime.sinks.iceberg.manifests import write_added

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Operation, Snapshot


class Conflict(Exception):
    """The catalog turned a request down: the table has moved on, or the request was refused. Whether an earlier one of
    the same commit, repeated on the way, has landed, the table tells."""


class Unknown(Exception):
    """The commit was sent and no clear answer came. Nothing may be removed."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a snapshot changes. `added`: data and delete files; `kept`: manifests of the parent that stay, None: all;
    `removed`: data files that are gone with the others (for the summary); `sequence`: the sequence number of rows that
    are added but are not new, None: the snapshot's own."""

    added: Sequence[DataFile] = ()
    kept: Sequence[ManifestFile] | None = None
    removed: Sequence[DataFile] = ()
    sequence: int | None = None
    summary: Mapping[str, str] = field(default_factory=dict)
    #: Keys of the table's properties; the values get the snapshot's id and sequence number.
    properties: Mapping[str, str] = field(default_factory=dict)


class Draft:
    """One attempt: write the metadata files, then `commit` once. `discard` where nothing was sent; after a `Conflict`
    only where the table, read once more, does not have it: what lies between may have sent the request twice, and then
    the second one is turned down because the first one has landed.

    `folder`, below the table's metadata location, is the checkpoint's own: what a killed attempt leaves is found there.
    """

    def __init__(self, table: Table, branch: str, folder: str) -> None:
        self._table = table
        self._branch = branch
        self._folder = folder
        self._commit_uuid = uuid.uuid4()
        self._paths: list[str] = []
        self.snapshot_id = table.metadata.new_snapshot_id()
        self.sequence = table.metadata.next_sequence_number()

    def new_path(self, name: str) -> str:
        """A metadata file of this attempt, removed with it."""
        path = self._table.location_provider().new_metadata_location(f"{self._folder}/{self._commit_uuid}-{name}.avro")
        self._paths.append(path)
        return path

    def commit(self, content: Content, operation: Operation) -> None:
        """Raises `Conflict`, `Unknown`, or `TargetError` where the catalog refuses us."""
        snapshot = self._write(content, operation)
        metadata = self._table.metadata
        from pyiceberg.table.refs import SnapshotRefType
        from pyiceberg.table.update import (
            AddSnapshotUpdate,
            AssertRefSnapshotId,
            AssertTableUUID,
            SetPropertiesUpdate,
            SetSnapshotRefUpdate,
        )

        ref = metadata.refs.get(self._branch)
        kept = {} if ref is None else ref.model_dump(exclude={"snapshot_id", "snapshot_ref_type"}, exclude_none=True)
        updates: list[Any] = [
            AddSnapshotUpdate(snapshot=snapshot),
            SetSnapshotRefUpdate(
                ref_name=self._branch, type=SnapshotRefType.BRANCH, snapshot_id=snapshot.snapshot_id, **kept
            ),
        ]
        if content.properties:
            updates.append(SetPropertiesUpdate(updates=dict(content.properties)))
        requirements: list[Any] = [
            AssertTableUUID(uuid=metadata.table_uuid),
            AssertRefSnapshotId(ref=self._branch, snapshot_id=None if ref is None else ref.snapshot_id),
        ]
        send(self._table, requirements, updates)

    def is_in(self, table: Table) -> bool:
        """Whether a table that was read after a `Conflict` has this snapshot."""
        return table.metadata.snapshot_by_id(self.snapshot_id) is not None

    def discard(self) -> None:
        """Remove what this attempt wrote."""
        for path in self._paths:
            # A file that cannot be removed now is an orphan, and no reason to fail.
            with contextlib.suppress(OSError):
                self._table.io.delete(path)

    def _write(self, content: Content, operation: Operation) -> Snapshot:
        from pyiceberg.manifest import write_manifest_list
        from pyiceberg.table.snapshots import Snapshot

        metadata, io = self._table.metadata, self._table.io
        parent = head_of(metadata, self._branch)
        added = write_added(self, self._table, content.added, content.sequence)
        kept = content.kept
        if kept is None:
            kept = [] if parent is None else [item for item in parent.manifests(io) if _has_files(item)]
        codec: Any = metadata.properties.get("write.avro.compression-codec", "gzip")
        path = self.new_path(f"snap-{self.snapshot_id}")
        with write_manifest_list(
            format_version=metadata.format_version,
            output_file=io.new_output(path),
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=None if parent is None else parent.snapshot_id,
            sequence_number=self.sequence,
            avro_compression=codec,
        ) as writer:
            writer.add_manifests([*added, *kept])
        return Snapshot(
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=None if parent is None else parent.snapshot_id,
            manifest_list=path,
            sequence_number=self.sequence,
            summary=_summary(self._table, parent, content, operation),
            schema_id=metadata.current_schema_id,
        )


def _has_files(manifest: ManifestFile) -> bool:
    """Whether any of its files is left; counts that are not given may be any."""
    return manifest.added_files_count != 0 or manifest.existing_files_count != 0


def _summary(table: Table, parent: Snapshot | None, content: Content, operation: Any) -> Any:
    from pyiceberg.table.snapshots import Operation, SnapshotSummaryCollector, Summary, update_snapshot_summaries

    metadata = table.metadata
    limit = int(metadata.properties.get("write.summary.partition-limit", 0))
    collector = SnapshotSummaryCollector(partition_summary_limit=limit)
    schema, specs = metadata.schema(), metadata.specs()
    for added in content.added:
        collector.add_file(added, schema, specs[added.spec_id])
    for removed in content.removed:
        collector.remove_file(removed, schema, specs[removed.spec_id])
    counted = Summary(Operation.OVERWRITE, **collector.build())  # pyiceberg counts no other snapshots that replace
    totals = update_snapshot_summaries(counted, None if parent is None else parent.summary)
    return Summary(operation, **{**totals.additional_properties, **content.summary})


def send(table: Table, requirements: Sequence[Any], updates: Sequence[Any]) -> None:
    """One request to the catalog: `Conflict` is certain, `Unknown` is not; `TargetError` where it refuses us."""
    from pydantic import ValidationError
    from pyiceberg import exceptions as ice

    try:
        answer = table.catalog.commit_table(table, tuple(requirements), tuple(updates))
    except (ice.NoSuchTableError, ice.NoSuchNamespaceError) as error:
        raise TargetError("TableMissing", f"the table is gone: {error}", path="options.table") from error
    except (ice.UnauthorizedError, ice.ForbiddenError, ice.AuthorizationExpiredError) as error:
        raise TargetError("PermissionDenied", "the catalog refuses the commit", path="options.catalog") from error
    except (ice.CommitFailedException, ice.BadRequestError, ice.TooManyRequestsError) as error:
        raise Conflict(f"{type(error).__name__}: {error}") from error
    except ValidationError as error:  # an answer that cannot be read
        raise Unknown(f"{type(error).__name__}") from error
    except ValueError as error:  # the SQL catalog applies the updates here, before it sends anything
        raise Conflict(str(error)) from error
    except Exception as error:
        if never_sent(error):
            raise ConnectionError(f"the catalog was not reached: {type(error).__name__}") from error
        raise Unknown(f"{type(error).__name__}: {error}") from error
    # Files only: without them older versions of the metadata stay, and nothing else is wrong.
    with contextlib.suppress(OSError):
        table.catalog._delete_old_metadata(table.io, table.metadata, answer.metadata)


def never_sent(error: Exception) -> bool:
    """Whether a request failed before any of it can have arrived: no connection was made."""
    from requests.exceptions import ConnectionError as NotConnected
    from requests.exceptions import ConnectTimeout
    from urllib3.exceptions import NewConnectionError

    if isinstance(error, ConnectTimeout):
        return True
    reason = getattr(error.args[0], "reason", None) if isinstance(error, NotConnected) and error.args else None
    return isinstance(reason, NewConnectionError)
