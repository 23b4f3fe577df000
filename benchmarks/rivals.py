"""What our sinks are measured against and the project does not need: dlt, ADBC, PostgreSQL's JDBC driver.

The suite `transactional` uses them. They come from PyPI and Maven when they are first asked for, into the cache of the
tests; dlt and ADBC live in a Python environment of their own, as a child that does one load for each line it reads.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.environments import locate_environment
from tests.servers.jars import locate_jars

DLT_PACKAGES = (
    "dlt[parquet,postgres]==1.31.0",
    "adbc-driver-manager==1.13.0",
    "adbc-driver-postgresql==1.13.0",
    "pyarrow==26.0.1",
)
LISTING = Path(__file__).with_name("postgresql_jar.txt")
STOP_TIMEOUT_SECONDS = 20.0

_CHILD = """
import json, os, sys, time
folder, url, workers = sys.argv[1:]
os.environ |= {
    "RUNTIME__DLTHUB_TELEMETRY": "false", "RUNTIME__LOG_LEVEL": "ERROR", "DLT_DATA_DIR": folder,
    "LOAD__WORKERS": workers, "LOAD__RAISE_ON_FAILED_JOBS": "true", "RESTORE_FROM_DESTINATION": "false",
}
import adbc_driver_postgresql.dbapi
import dlt
import pyarrow as pa
import pyarrow.parquet as pq

def adbc(number, files, batch_rows):
    table = pa.concat_tables([pq.read_table(file) for file in files])
    batches = table.to_batches(max_chunksize=batch_rows)
    begun = time.perf_counter()
    with adbc_driver_postgresql.dbapi.connect(url) as connection:
        with connection.cursor() as cursor:
            cursor.adbc_ingest("t", pa.RecordBatchReader.from_batches(table.schema, batches), mode="append")
        connection.commit()
    return time.perf_counter() - begun

def load(number, files, dataset, whole):
    @dlt.resource(name="t", write_disposition="append", file_format="parquet", columns=pq.read_schema(files[0]))
    def rows():
        for file in files:
            known = pq.read_metadata(file).num_rows
            yield dlt.mark.with_file_import(file, "parquet", known) if whole else pq.read_table(file)

    target = dlt.destinations.postgres(url)
    begun = time.perf_counter()
    pipeline = dlt.pipeline(f"bench{number}", pipelines_dir=folder, destination=target, dataset_name=dataset)
    done = pipeline.run(rows())
    taken = time.perf_counter() - begun
    jobs = [job.file_path for package in done.load_packages for job in package.jobs["completed_jobs"]]
    assert jobs and all(job.endswith(".parquet") for job in jobs), jobs
    return taken

for number, line in enumerate(sys.stdin):
    try:
        request = json.loads(line)
        answer = (adbc if "batch_rows" in request else load)(number, **request)
    except BaseException as error:
        answer = f"{type(error).__name__}: {error}"
    print("ANSWER " + json.dumps(answer), flush=True)
"""


class Loaders:
    """dlt and ADBC, loading Parquet files into one database of PostgreSQL."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def dlt(self, source: Path, dataset: str, *, whole: bool) -> float:
        """Seconds that a pipeline of dlt takes to append the rows to the table `t` of a schema, which it makes.

        dlt hands Parquet files of its own to ADBC. `whole`: it hands over these as they are, and reads no row itself.
        """
        return self._ask({"files": _files(source), "dataset": dataset, "whole": whole})

    def adbc(self, source: Path, batch_rows: int) -> float:
        """Seconds that one connection of ADBC takes to append the rows to `t`, from Arrow batches in memory."""
        return self._ask({"files": _files(source), "batch_rows": batch_rows})

    def _ask(self, request: dict[str, object]) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("ANSWER "):
                answer = json.loads(line.removeprefix("ANSWER "))
                if isinstance(answer, float):
                    return answer
                raise RuntimeError(f"a rival failed: {answer}")
        raise RuntimeError("the rivals' process has ended")


@contextmanager
def loaders(folder: Path, url: str, workers: int) -> Iterator[Loaders]:
    """A child that loads, dlt by so many workers; what it keeps is below `folder`. Raises ProgramMissingError."""
    command = [str(locate_environment("dlt", DLT_PACKAGES)), "-c", _CHILD, str(folder), url, str(workers)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder)
    try:
        yield Loaders(process)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT_SECONDS)
        process.stdout.close()


def _files(source: Path) -> list[str]:
    return [str(file) for file in sorted(source.glob("*.parquet"))]


def locate_jdbc_driver() -> Path:
    """The jar of PostgreSQL's JDBC driver. Raises ProgramMissingError."""
    (jar,) = locate_jars("postgresql-jdbc", LISTING).glob("*.jar")
    return jar
