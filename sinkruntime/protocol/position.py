"""Where a batch stands in its source: Spark's offset files, read into `Offsets`.

The driver reads the files and passes their text in; here they are only parsed and digested. Pure.
A file `offsets/<batch>` holds a version line (`v1`), a line of metadata (watermark, timestamp), then one line per
source: its offset as JSON, or `-`. Only the source lines say which rows a batch has.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from sinkruntime.protocol.ledger import Offsets

#: Longer texts are left out of the ledger: it must stay below a ConfigMap's 1 MiB with 16 records, two texts each.
TEXT_BYTES_MAX = 8 * 1024

#: Before the first batch there is nothing.
NOWHERE = Offsets(digest=hashlib.sha256(b"").hexdigest())


#: The query id of a batch job's positions: its identity is (spec revision, restart nonce), kept in `Ledger.batches`.
BATCH_QUERY = "batch"


class BadOffsets(ValueError):
    """An offset file that is not as Spark writes it."""


def source_lines(text: str) -> tuple[str, ...]:
    """The source lines of an offset file; raises `BadOffsets` where the file is torn or of another version."""
    lines = text.removesuffix("\n").split("\n")  # not splitlines: an offset may hold U+2028
    if len(lines) < 3 or lines[0] != "v1":
        found = lines[0] or "nothing"
        raise BadOffsets(f"expected `v1`, a line of metadata and a line per source, found {found!r}")
    return tuple(lines[2:])


def is_index(line: str) -> bool:
    """Whether a source's offset only numbers its log entries, as a file stream's `{"logOffset":1}` does."""
    try:
        value = json.loads(line)
    except ValueError:
        return False
    return isinstance(value, dict) and set(value) == {"logOffset"}


def offsets(lines: Sequence[str], entries: Sequence[Sequence[str]] = ()) -> Offsets:
    """Digest the source lines; `entries[i]` is what the index of source `i` stands for (its files), in any order."""
    sha = hashlib.sha256()
    for number, line in enumerate(lines):
        sha.update(line.encode())
        sha.update(b"\n")
        for entry in sorted(entries[number]) if number < len(entries) else ():
            sha.update(entry.encode())
            sha.update(b"\0")
    text = "\n".join(lines)
    return Offsets(sha.hexdigest(), text if len(text.encode()) <= TEXT_BYTES_MAX else "")
