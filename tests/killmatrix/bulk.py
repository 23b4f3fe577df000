"""The kill matrix at size: millions of rows, a quarter of a million in each checkpoint, killed at random instants.

`__main__` runs it for `--rows`. A bench joins by looking at `self.bulk` in `sinks` (files and partitions of a sensible
size, two sinks or one) and by `export`: the target's own engine writes what it sees as Parquet, and DuckDB compares
that with the input as a multiset. What is looked at after each kill is left to the matrix of small files.
"""

from __future__ import annotations

from pathlib import Path

import duckdb

from tests.killmatrix.bench import Bench
from tests.killmatrix.job import Job
from tests.killmatrix.matrix import Matrix, Say
from tests.killmatrix.rows import LABELS

#: Checkpoints in which the rows come, at least; each is one input file.
CHECKPOINTS = 40
FINAL_SECONDS_MAX = 3600.0

#: Two rows in a thousand are there twice; all kinds of null; every column's value follows from the row's number.
MAKE = """
COPY (
    SELECT i AS id, CAST(? AS INTEGER) AS origin,
        CASE WHEN i % 17 = 0 THEN NULL ELSE 'name ' || (i * 7919 % 100003) END AS name,
        CASE WHEN i % 19 = 0 THEN '' ELSE 'naïve 日本語 ' || substr(md5(CAST(i AS VARCHAR)), 1, 8) END AS note,
        CASE WHEN i % 23 = 0 THEN NULL ELSE CAST(i * 0.25 AS DOUBLE) END AS amount,
        CASE i % 3 WHEN 0 THEN NULL WHEN 1 THEN true ELSE false END AS flag,
        CASE WHEN i % 29 = 0 THEN NULL ELSE make_timestamptz(1600000000000000 + i * 1000003) END AS "at",
        CAST(? AS VARCHAR[])[1 + i % ?] AS label
    FROM range(?, ?) AS numbers(i), range(CASE WHEN i % 500 = 0 THEN 2 ELSE 1 END)
) TO '{path}' (FORMAT parquet)
"""
COUNTED = """
SELECT hash(CAST(id AS BIGINT), CAST(origin AS INTEGER), CAST(name AS VARCHAR), CAST(note AS VARCHAR),
    CAST(amount AS DOUBLE), CAST(flag AS BOOLEAN), epoch_us("at"), CAST(label AS VARCHAR)) AS digest, count(*) AS rows
FROM read_parquet('{folder}/**/*.parquet', hive_partitioning = false) GROUP BY digest
"""
COMPARE = f"""
SELECT coalesce(sum(greatest(coalesce(e.rows, 0) - coalesce(s.rows, 0), 0)), 0),
    coalesce(sum(greatest(coalesce(s.rows, 0) - coalesce(e.rows, 0), 0)), 0),
    coalesce(sum(e.rows), 0), count(e.rows)
FROM ({COUNTED.replace("folder", "expected")}) AS e FULL JOIN ({COUNTED.replace("folder", "seen")}) AS s USING (digest)
"""


class BulkInput:
    """The input folder: Parquet files of so many rows."""

    format = "parquet"
    files_per_trigger = 1
    commit_timeout = "120s"

    def __init__(self, folder: Path, rows_per_file: int) -> None:
        self.folder = folder
        self.files = 0
        self._rows_per_file = rows_per_file
        folder.mkdir(parents=True)

    def add(self, files: int) -> None:
        """Add so many files, each of which appears whole."""
        with _duckdb() as connection:
            for _ in range(files):
                temporary = self.folder / f".{self.files}.tmp"
                first = self.files * self._rows_per_file
                values = [self.files, list(LABELS), len(LABELS), first, first + self._rows_per_file]
                connection.execute(MAKE.format(path=temporary), values)
                temporary.rename(self.folder / f"in-{self.files:06d}.parquet")
                self.files += 1


class BulkMatrix(Matrix):
    """One job of many rows."""

    final_seconds_max = FINAL_SECONDS_MAX

    def __init__(self, folder: Path, bench: Bench, rows: int, say: Say) -> None:
        feed = BulkInput(folder / "input", -(-rows // CHECKPOINTS))
        super().__init__(Job(folder, bench, feed), bench, say)
        self._folder = folder

    def _look(self) -> None:
        """Nothing: to read so many rows after each kill would take longer than the run."""

    def _finish(self) -> None:
        self._job.input.add(max(0, CHECKPOINTS - self._job.input.files))
        super()._finish()

    def _compare(self) -> None:
        for sink in self._sinks:
            out = self._folder / "seen" / sink
            out.mkdir(parents=True)
            self._bench.export(sink, out)
            with _duckdb() as connection:
                question = COMPARE.format(expected=self._folder / "input", seen=out)
                missing, extra, rows, different = connection.execute(question).fetchall()[0]
            self._say(f"    sink {sink}: {rows} rows, {different} different ones: {missing} missing, {extra} extra")
            self.result.missing += missing
            self.result.extra += extra


def _duckdb() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    return connection
