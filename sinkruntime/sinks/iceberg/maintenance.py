"""What may be done to a table after a commit: rewrite small files, merge manifests, expire snapshots, remove orphans.

Called by the sink's `post_commit`; all of it is off by default. Each task is a commit of its own, or a removal of what
no snapshot refers to, so it may die at any instant, and its next turn does the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sinkruntime.api import SinkIdentity
from sinkruntime.errors import SinkjobError
from sinkruntime.sinks.iceberg import catalog, expiry, merging, orphans, rewrite
from sinkruntime.sinks.iceberg.options import Maintenance, Options
from sinkruntime.sinks.iceberg.snapshot import Conflict, Unknown
from sinkruntime.sinks.iceberg.upkeep import Limit, Work

Task = Callable[[Work], None]


def maintain(options: Options, identity: SinkIdentity, checkpoint: int, limit: Limit | None = None) -> None:
    """Whatever is due after this checkpoint. One task's failure does not keep the others; the first is raised.

    `limit`: of several tables together; None: the options'.
    """
    tasks = list(_due(options.maintenance, checkpoint))
    if not tasks:
        return
    limit = limit or Limit(options.maintenance.time_limit.seconds)
    failures: list[Exception] = []
    with catalog.opened(options) as opened:
        work = Work(options, identity, opened, limit, time.time())
        for task in tasks:
            if limit.is_over:
                break
            try:
                task(work)
            except (SinkjobError, OSError, Conflict, Unknown) as error:
                failures.append(error)
    if failures:
        raise failures[0]


def _due(told: Maintenance, checkpoint: int) -> list[Task]:
    turns: list[tuple[int | None, Task]] = [
        (told.rewrite_every, rewrite.run),
        (told.merge_manifests_every, merging.run),
        (told.expire_every, expiry.run),
        (told.orphans_every, orphans.run),
    ]
    return [task for every, task in turns if every is not None and checkpoint % every == 0]
