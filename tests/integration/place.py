"""One job's folder for tests of the start check: prepared once, put back at the same path for each case.

Paths stay the same because Spark's own logs hold absolute ones. Rows are read back without any code of the product.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import yaml

from tests.integration.warm import Answer, Warm

NAMESPACE, NAME = "tests", "started"
ROWS_PER_FILE = 3


@dataclass(frozen=True, slots=True)
class Place:
    """`work` is the job's folder, `saved` holds copies of it by name."""

    work: Path
    saved: Path
    warm: Warm

    @property
    def workspace(self) -> Path:
        """`.sinkjob/<namespace>/<name>`."""
        return self.work / ".sinkjob" / NAMESPACE / NAME

    @property
    def ledger(self) -> Path:
        """The ledger's folder."""
        return self.workspace / "ledger"

    @property
    def checkpoint(self) -> Path:
        """Spark's checkpoint location: outside the workspace, as it is for a job that was deleted and made again."""
        return self.work / "checkpoint"

    def save(self, name: str) -> None:
        """Keep a copy of the folder as it is."""
        shutil.copytree(self.work, self.saved / name)

    def restore(self, name: str) -> None:
        """Make the folder what it was."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.saved / name, self.work)

    def put_back(self, name: str, part: str) -> None:
        """Replace a part of the folder by that of a copy."""
        shutil.rmtree(self.work / part, ignore_errors=True)
        shutil.copytree(self.saved / name / part, self.work / part)

    def add_file(self, number: int, times: int = 1) -> None:
        """An input file with the ids of that number, which appears whole; `times`: each row so often, all different."""
        folder = self.work / "input"
        folder.mkdir(parents=True, exist_ok=True)
        names = [f"{word} of {number}: {hashlib.sha256(f'{word}'.encode()).hexdigest()}" for word in range(times)]
        rows = [{"id": number * 100 + at, "name": name} for at in range(ROWS_PER_FILE) for name in names]
        temporary = folder / f".in-{number}.tmp"
        temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
        temporary.rename(folder / f"in-{number}.json")

    def write_manifest(self, path: str = "job.yaml", **changes: Any) -> None:
        """The job's manifest; `changes` of `spec`, and `name`."""
        name = changes.pop("name", NAME)
        out = changes.pop("out", "out")
        sinks = [
            {"name": "lake", "type": "file", "options": {"path": f"{out}/lake"}},
            {"name": "lines", "type": "file", "options": {"path": f"{out}/lines", "format": "json"}},
        ]
        sinks[1]["commit"] = {"runOn": "Operator"}
        spec = {
            "source": {
                "format": "json",
                "path": "input",
                "schema": "id BIGINT, name STRING",
                "options": {"maxFilesPerTrigger": "1"},
            },
            "trigger": {"type": "AvailableNow"},
            "checkpoint": {"location": str(self.checkpoint)},
            "commit": {"retry": {"initialBackoff": "50ms", "maxBackoff": "200ms"}},
            "sinks": sinks,
            **changes,
        }
        manifest = {
            "apiVersion": "sinkjob.io/v1alpha1",
            "kind": "SinkJob",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": spec,
        }
        (self.work / path).write_text(yaml.safe_dump(manifest, sort_keys=False))

    def accept(self, nonce: int, reasons: Sequence[str]) -> None:
        """Write the manifest with a person's word."""
        self.write_manifest(recovery={"nonce": nonce, "accept": list(reasons)})

    def run(self, path: str = "job.yaml") -> Answer:
        """`sinkjob run`."""
        return self.warm.run(self.work, "run", path, "--master", "local[2]")

    def done(self) -> None:
        """`sinkjob run` to its good end."""
        answer = self.run()
        assert answer.code == 0, answer.output

    def refused(self, reason: str, code: int = 1) -> str:
        """A run that stops with this reason and advice, and leaves alone what readers and Spark see; its output."""
        before, decided = self.traces(), self.decided()
        answer = self.run()
        assert answer.code == code, answer.output
        assert reason in answer.output
        assert "accept" in answer.output, "the advice says what accepting means"
        assert (self.traces(), self.decided()) == (before, decided)
        return answer.output

    def files(self, sink: str, out: str = "out") -> list[Path]:
        """The visible files of a sink."""
        return sorted(p for p in (self.work / out / sink).glob("*") if p.is_file() and p.name[0] not in "_.")

    def numbers(self, sink: str, out: str = "out") -> dict[int, int]:
        """Input file's number -> how often all its rows are there; one that is there in part fails the test."""
        ids: Counter[int] = Counter()
        for path in self.files(sink, out):
            if sink == "lines":
                ids.update(json.loads(line)["id"] for line in path.read_text().splitlines())
            else:
                with duckdb.connect() as connection:
                    found = connection.execute("SELECT id FROM read_parquet(?)", [str(path)]).fetchall()
                ids.update(row[0] for row in found)
        times = {number: ids[number * 100] for number in {one // 100 for one in ids}}
        whole = Counter({n * 100 + at: count for n, count in times.items() for at in range(ROWS_PER_FILE)})
        assert ids == whole, f"sink {sink} holds parts of files: {ids}"
        return times

    def decided(self) -> int:
        """The number of the last decision; 0 without a ledger."""
        return int(self._ledger().get("decided", 0))

    def claim(self) -> str:
        """Which process has claimed the ledger's epoch; "" for none."""
        return str(self._ledger().get("claim", ""))

    def pending(self) -> int:
        """How many checkpoints are decided and not marked committed."""
        records = self._ledger().get("records", [])
        return sum(record.get("state", "decided") in ("decided", "aborting") for record in records)

    def _ledger(self) -> dict[str, Any]:
        path = self.ledger / "ledger.json"
        found: dict[str, Any] = json.loads(path.read_text().partition("\n")[2])["ledger"] if path.exists() else {}
        return found

    def traces(self) -> dict[str, str]:
        """What a refused start must leave alone: visible files, evidence, Spark's checkpoint; by path, digests."""
        paths = [*self.files("lake"), *self.files("lines")]
        paths += [*self.work.glob("out/*/_sinkjob/*-*.json")]
        paths += [path for path in self.checkpoint.rglob("*") if path.is_file()]
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(paths)}
