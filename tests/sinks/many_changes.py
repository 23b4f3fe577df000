"""A million changes of rows, run through a real job, and compared with what DuckDB makes of them.

The tests of sinks that upsert use it. Changes of one key come in any order within a checkpoint, `at` tells the later
one; between checkpoints they come in order, as `docs/sinks/` says they must. One in twenty deletes.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import yaml

CHANGES = 1_000_000
KEYS = 200_000
CHECKPOINTS = 25
DDL = "id BIGINT, part STRING, name STRING, amount DOUBLE, at BIGINT, op STRING"
#: What the sink's table has of them.
COLUMNS = ("id", "part", "name", "amount")
#: Options that mean the same to the sinks that have them.
UPSERT: Mapping[str, Any] = {"key": ["id"], "orderBy": ["at"], "deleteWhen": "op = 'D'", "omit": ["at", "op"]}

MAKE = """
CREATE TABLE changes AS
SELECT i // {each} AS file, CAST(hash(i, {seed}) % {keys} AS BIGINT) AS id, 'part ' || id % 7 AS part,
    CASE WHEN i % 31 = 0 THEN NULL ELSE 'name ' || hash(i) % 100000 END AS name, CAST(i * 0.25 AS DOUBLE) AS amount,
    i AS "at", CASE WHEN hash(i, {seed} + 1) % 20 = 0 THEN 'D' ELSE 'U' END AS op
FROM range({changes}) AS numbers(i)
"""
ONE_FILE = """
COPY (SELECT id, part, name, amount, "at", op FROM changes WHERE file = {file} ORDER BY hash("at", {seed} + 2))
TO '{path}' (FORMAT parquet)
"""
EXPECTED = """
SELECT id, last.part AS part, last.name AS name, last.amount AS amount
FROM (
    SELECT id, arg_max({'part': part, 'name': name, 'amount': amount, 'op': op}, "at") AS last
    FROM read_parquet('$input/*.parquet') GROUP BY id
) WHERE last.op <> 'D'
"""
RUN_SECONDS_MAX = 3000


def make(folder: Path, seed: int = 1) -> None:
    """Write the changes below `folder/input`, a file a checkpoint."""
    (folder / "input").mkdir(parents=True)
    with duckdb.connect() as connection:
        connection.execute(MAKE.format(each=CHANGES // CHECKPOINTS, seed=seed, keys=KEYS, changes=CHANGES))
        for file in range(CHECKPOINTS):
            path = folder / "input" / f"in-{file:06d}.parquet"
            connection.execute(ONE_FILE.format(file=file, seed=seed, path=path))


def run(folder: Path, sink: Mapping[str, Any]) -> None:
    """Run them through a job with this one sink to their end."""
    spec = {
        "source": {"format": "parquet", "path": "input", "schema": DDL, "options": {"maxFilesPerTrigger": "1"}},
        "trigger": {"type": "AvailableNow"},
        "commit": {"timeout": "120s"},
        "sinks": [{"guarantee": "ExactlyOnce", **sink}],
    }
    names = {"name": "many-changes", "namespace": "tests"}
    manifest = {"apiVersion": "sinkjob.io/v1alpha1", "kind": "SinkJob", "metadata": names, "spec": spec}
    (folder / "job.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))
    command = [sys.executable, "-m", "sinkruntime.cli.main", "run", "job.yaml", "--master", "local[2]"]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False)
    assert made.returncode == 0, f"{made.stdout[-2000:]}\n{made.stderr[-4000:]}"


def compare(folder: Path, seen: Path) -> tuple[int, int, int]:
    """How many rows must be there, how many of them are missing below `seen` (Parquet files with `COLUMNS`), and how
    many are there that must not be."""
    columns = ", ".join(COLUMNS)
    expected = EXPECTED.replace("$input", str(folder / "input"))
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE expected AS {expected}")
        connection.execute(f"CREATE TABLE seen AS SELECT {columns} FROM read_parquet('{seen}/**/*.parquet')")
        counts = [
            connection.execute(f"SELECT count(*) FROM ({question})").fetchall()[0][0]
            for question in (
                "FROM expected",
                f"SELECT {columns} FROM expected EXCEPT ALL SELECT {columns} FROM seen",
                f"SELECT {columns} FROM seen EXCEPT ALL SELECT {columns} FROM expected",
            )
        ]
    return counts[0], counts[1], counts[2]
