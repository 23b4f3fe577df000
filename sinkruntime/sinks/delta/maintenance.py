"""What may be done to a table after a commit: compact its small files, remove those that the log has given up.

Called by the sink's `post_commit`; off by default. Both are commits of their own, which others may overtake: then they
fail, and the next turn does the work. Never removes a staged file: only files that the log once named.
"""

from __future__ import annotations

from sinkruntime.sinks.delta.options import Options
from sinkruntime.sinks.delta.place import Place
from sinkruntime.sinks.delta.table import load, talking


def maintain(options: Options, checkpoint: int) -> None:
    """Whatever is due after this checkpoint."""
    told = options.maintenance
    if told.optimize_every is not None and checkpoint % told.optimize_every == 0:
        with talking("compacting the table"):
            load(Place(options)).optimize.compact(
                target_size=options.target_file_size.bytes,
                max_concurrent_tasks=1,  # it shares its process with other commits
                max_spill_size=options.merge_memory.bytes,
            )
    if told.vacuum_every is not None and checkpoint % told.vacuum_every == 0:
        hours = -(-told.vacuum_retention.milliseconds // 3_600_000)
        with talking("vacuuming the table"):
            load(Place(options)).vacuum(hours, dry_run=False, full=False)
