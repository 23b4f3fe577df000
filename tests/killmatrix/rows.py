"""The input of the kill matrix: JSON files with duplicates, nulls, empty strings and all kinds of characters.

`job` lets it grow while the job runs. What it wrote is the truth that the sinks are compared with.
"""

from __future__ import annotations

import datetime
import json
import random
from collections import Counter
from pathlib import Path

#: id, origin (the number of the input file), name, note, amount, flag, at (microseconds since 1970), label.
Row = tuple[int, int, str | None, str | None, float | None, bool | None, int | None, str | None]
Rows = Counter[Row]

COLUMNS = ("id", "origin", "name", "note", "amount", "flag", "at", "label")
DDL = "id BIGINT, origin INT, name STRING, note STRING, amount DOUBLE, flag BOOLEAN, at TIMESTAMP, label STRING"

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
ROWS_MAX = 40

TEXTS = (
    None,
    "",
    " ",
    "plain",
    "null",
    "\\N",
    "naïve 日本語",
    "👩‍🚀🇩🇪",
    "שלום العربية \u202eabc",
    "a \"quoted\" 'text'",
    "line\nbreak\r\nand\ttab",
    "separator\u2028\u2029",
    "back\\slash, comma; semicolon",
    "zero\u200bwidth\ufeff",
    "${x} %s",
)
#: Partition values: never empty, for a directory's name cannot tell that from null.
LABELS = (None, "plain", "ünï 😀", "x/y=z %41", 'q"u:o*t?e', "שלום")


class Input:
    """The input folder, and every row in it."""

    format = "json"
    files_per_trigger = 2
    commit_timeout = "10s"

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder = folder
        self.rows: Rows = Counter()
        self.files = 0
        self._chance = chance
        self._ids = 0
        folder.mkdir(parents=True)

    def add(self, files: int) -> None:
        """Add so many files, each of which appears whole."""
        for _ in range(files):
            rows = self._make()
            self.rows.update(rows)
            temporary = self.folder / f".{self.files}.tmp"
            temporary.write_text("".join(f"{_text(row)}\n" for row in rows), encoding="utf-8", newline="")
            temporary.rename(self.folder / f"in-{self.files:06d}.json")
            self.files += 1

    def _make(self) -> list[Row]:
        """Rows of one file; some twice, some of earlier files again, now and then none at all."""
        chance = self._chance
        if chance.random() < 0.08:
            return []
        fresh = [self._row() for _ in range(chance.randint(1, ROWS_MAX))]
        again = [row for row in fresh if chance.random() < 0.15]
        known = list(self.rows) if self.files % 10 == 9 else []
        return fresh + again + chance.sample(known, min(3, len(known)))

    def _row(self) -> Row:
        chance = self._chance
        self._ids += 1
        amount = chance.choice((None, 0.0, -1.5, 1e-300, chance.random() * 1e9))
        at = chance.choice((None, 0, chance.randrange(2**52)))
        flag = chance.choice((None, True, False))
        return (
            self._ids, self.files, chance.choice(TEXTS), chance.choice(TEXTS), amount, flag, at, chance.choice(LABELS),
        )  # fmt: skip


def _text(row: Row) -> str:
    values = dict(zip(COLUMNS, row, strict=True))
    if row[6] is not None:
        values["at"] = (EPOCH + datetime.timedelta(microseconds=row[6])).isoformat().replace("+00:00", "Z")
    return json.dumps(values, ensure_ascii=False)
