"""What the kill matrix reads of a local job's ledger and of Spark's checkpoint, with no code of the product."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

#: Above any index of a source's log.
ALL = 2**62


@dataclass(frozen=True, slots=True)
class LedgerView:
    """`pending`: numbers that are decided and not marked committed. `source_end`: index in the source's log that the
    last decision ended with, -1 before the first one."""

    ledger_id: str = ""
    epoch: int = 0
    decided: int = 0
    pending: tuple[int, ...] = ()
    source_end: int = -1


class LedgerFile:
    """`ledger.json` of a job, read again only when it was replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int] | None = None
        self._view = LedgerView()

    def read(self) -> LedgerView:
        """The ledger as it is now; an empty view before there is one. Raises ValueError for a torn one."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return LedgerView()
        seen = (found.st_ino, found.st_mtime_ns)
        if seen != self._seen:
            self._view = _parse(self.path.read_text(encoding="utf-8"))
            self._seen = seen
        return self._view


def _parse(text: str) -> LedgerView:
    _, _, body = text.partition("\n")
    ledger = json.loads(body)["ledger"]
    records = ledger.get("records", [])
    pending = tuple(r["number"] for r in records if r.get("state", "decided") in ("decided", "aborting"))
    last = ledger.get("last")
    end = json.loads(last["position"]["end"]["text"])["logOffset"] if last else -1
    return LedgerView(ledger["ledger_id"], ledger.get("epoch", 0), ledger.get("decided", 0), pending, end)


def source_log(checkpoint: Path) -> dict[int, int]:
    """Of a file source: the number in each input file's name -> the index of the log entry that took it in."""
    found: dict[int, int] = {}
    folder = checkpoint / "sources" / "0"
    for path in sorted(folder.iterdir()) if folder.exists() else ():
        if path.name.removesuffix(".compact").isdigit():
            for line in path.read_text(encoding="utf-8").split("\n")[1:]:
                if line:
                    entry = json.loads(line)
                    found[int(entry["path"].rpartition("in-")[2].removesuffix(".json"))] = entry["batchId"]
    return found
