"""Programs that our sinks are measured against and that the project does not need: dlt, PostgreSQL's JDBC driver.

The suite `transactional` uses them. They come from PyPI and Maven when they are first asked for, into the cache of the
tests; dlt lives in a Python environment of its own, as a child that does one load for each line that it reads.
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

#: Loads by Arrow tables, and by files that are taken as they are; as many loaders as Spark has cores here.
_DLT = """
import json, os, sys, time
folder, url, workers = sys.argv[1:]
os.environ |= {
    "RUNTIME__DLTHUB_TELEMETRY": "false", "RUNTIME__LOG_LEVEL": "ERROR", "DLT_DATA_DIR": folder,
    "LOAD__WORKERS": workers, "LOAD__RAISE_ON_FAILED_JOBS": "true", "RESTORE_FROM_DESTINATION": "false",
}
import dlt
import pyarrow.parquet as pq

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
        answer = load(number, **json.loads(line))
    except BaseException as error:
        answer = f"{type(error).__name__}: {error}"
    print("ANSWER " + json.dumps(answer), flush=True)
"""


class Dlt:
    """dlt, loading Parquet files into PostgreSQL by its ADBC path."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def load(self, source: Path, dataset: str, *, whole: bool) -> float:
        """Seconds that one pipeline takes to append the rows to the table `t` of a schema, which it makes.

        `whole`: the files are handed over as they are, and no row passes through dlt before it loads them.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        files = [str(file) for file in sorted(source.glob("*.parquet"))]
        self._process.stdin.write(json.dumps({"files": files, "dataset": dataset, "whole": whole}) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("ANSWER "):
                answer = json.loads(line.removeprefix("ANSWER "))
                if isinstance(answer, float):
                    return answer
                raise RuntimeError(f"dlt: {answer}")
        raise RuntimeError("dlt has ended")


@contextmanager
def dlt(folder: Path, url: str, workers: int) -> Iterator[Dlt]:
    """A child that loads into one database; what it keeps is below `folder`. Raises ProgramMissingError."""
    command = [str(locate_environment("dlt", DLT_PACKAGES)), "-c", _DLT, str(folder), url, str(workers)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder)
    try:
        yield Dlt(process)
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


def locate_jdbc_driver() -> Path:
    """The jar of PostgreSQL's JDBC driver. Raises ProgramMissingError."""
    (jar,) = locate_jars("postgresql-jdbc", LISTING).glob("*.jar")
    return jar
