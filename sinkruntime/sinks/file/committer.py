"""The aggregated committer of the `file` sink: adds the checkpoint to Spark's log, if one is kept, before the evidence.

Called by the coordinator. The files themselves are published by `storage.committer`, before it.
"""

from __future__ import annotations

from sinkruntime.api import CommitRequest, SinkIdentity
from sinkruntime.sinks.file import spark_log
from sinkruntime.sinks.file.options import Log, Options
from sinkruntime.storage.base import Storage
from sinkruntime.storage.committer import EvidenceCommitter
from sinkruntime.storage.marker import Marker


class FileAggregatedCommitter(EvidenceCommitter):
    """Moves the evidence, one checkpoint at a time. An empty checkpoint leaves none."""

    def __init__(self, options: Options, storage: Storage, identity: SinkIdentity) -> None:
        super().__init__(storage, identity)
        self._options = options

    def _before_evidence(self, request: CommitRequest, marker: Marker) -> int:
        if self._options.log is Log.SPARK:
            return spark_log.add(self._storage, request.committable["files"], marker.log)
        return super()._before_evidence(request, marker)
