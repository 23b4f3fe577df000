"""Reads Hudi tables with code that is none of ours: hudi-rs, and Hudi's own reader on Spark 3.5.

Loaded as a pytest plugin by `tests/conftest.py`. Each lives in a Python environment of its own, as a child that reads
requests (JSON lines: a table's address, options, where to put the rows) and answers `ok` or an error. One child of
each kind for the session; what runs without pytest, as the kill matrix does, calls `rust` or `spark`.
"""

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.servers.environments import locate_environment
from tests.servers.jars import locate_jars
from tests.servers.programs import ProgramMissingError

RUST_PACKAGES = ("hudi==0.5.0", "pyarrow==26.0.1")
SPARK_PACKAGES = ("pyspark==3.5.8", "pyarrow==18.1.0", "pandas==2.2.3")
LISTING = Path(__file__).with_name("hudi_jars.txt")
STOP_TIMEOUT_SECONDS = 20.0

_LOOP = """
import json, sys
import pyarrow as pa
for line in sys.stdin:
    request = json.loads(line)
    try:
        table = read(request["uri"], request["options"])
        with pa.OSFile(request["out"], "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        answer = "ok"
    except BaseException as error:
        answer = f"{type(error).__name__}: {error}"
    print("ANSWER " + json.dumps(answer), flush=True)
"""

_RUST = """
import pyarrow
from hudi import HudiTableBuilder
def read(uri, options):
    table = HudiTableBuilder.from_base_uri(uri).with_options(options).build()
    batches = [pyarrow.record_batch(batch) for batch in table.read()]
    schema = batches[0].schema if batches else pyarrow.schema(table.get_schema())
    return pyarrow.Table.from_batches(batches, schema)
"""

_SPARK = """
import sys
from pyspark.sql import SparkSession
session = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", sys.argv[1])
    .config("spark.serializer", "org.apache.spark.serializer.KryoSerializer")
    .config("spark.kryo.registrator", "org.apache.spark.HoodieSparkKryoRegistrar")
    .config("spark.sql.extensions", "org.apache.spark.sql.hudi.HoodieSparkSessionExtension")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    .config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
    .config("spark.driver.memory", "700m")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    .getOrCreate()
)
session.sparkContext.setLogLevel("ERROR")
def read(uri, options):
    write = options.pop("sinkjob.write", None)
    if write:
        session.sql(write).write.format("hudi").options(**options).mode("append").save(uri)
    out, columns = options.pop("sinkjob.export", None), options.pop("sinkjob.columns", "")
    frame = session.read.format("hudi").options(**({} if write else options)).load(uri)
    if out:
        frame.select(*columns.split(",")).write.mode("append").parquet(out)
        return pa.table({})
    return pa.Table.from_batches(frame._collect_as_arrow(), pa.schema(to_arrow(frame.schema)))
def to_arrow(schema):
    from pyspark.sql.pandas.types import to_arrow_schema
    return to_arrow_schema(schema)
"""


class HudiReader:
    """A child that reads tables."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path, folder: Path) -> None:
        self._process = process
        self._log = log
        self._out = folder / "rows.arrow"

    def table(self, uri: str, options: Mapping[str, str] | None = None) -> pa.Table:
        """All rows that it sees in the table, with Hudi's columns. Raises RuntimeError with what it said."""
        request = {"uri": uri, "options": dict(options or {}), "out": str(self._out)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("ANSWER "):
                break
        else:
            raise RuntimeError(f"the reader ended: {self._log.read_text()[-2000:]}")
        answer = json.loads(line.removeprefix("ANSWER "))
        if answer != "ok":
            raise RuntimeError(answer)
        with pa.OSFile(str(self._out), "rb") as source:
            return pa.ipc.open_file(source).read_all()

    def export(self, uri: str, out: Path, columns: Sequence[str]) -> None:
        """Write these columns of all rows as Parquet into the folder `out`. Spark only."""
        self.table(uri, {"sinkjob.export": str(out), "sinkjob.columns": ",".join(columns)})

    def rows(self, uri: str, options: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """The same as dictionaries."""
        return self.table(uri, options).to_pylist()


def locate_rust() -> Path:
    """The Python of hudi-rs. Raises ProgramMissingError."""
    return locate_environment("hudi-rs", RUST_PACKAGES)


def locate_spark() -> tuple[Path, Path]:
    """The Python of Spark 3.5, and Hudi's jar for it. Raises ProgramMissingError."""
    (jar,) = locate_jars("hudi-spark", LISTING).iterdir()
    return locate_environment("hudi-spark", SPARK_PACKAGES), jar


@contextmanager
def rust() -> Iterator[HudiReader]:
    """hudi-rs. Raises ProgramMissingError."""
    with _child([str(locate_rust()), "-c", _RUST + _LOOP]) as reader:
        yield reader


@contextmanager
def spark() -> Iterator[HudiReader]:
    """Hudi's own reader and writer, on Spark 3.5. Raises ProgramMissingError."""
    python, jar = locate_spark()
    with _child([str(python), "-c", "import pyarrow as pa" + _SPARK + _LOOP, str(jar)]) as reader:
        yield reader


@contextmanager
def _child(command: list[str]) -> Iterator[HudiReader]:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with log.open("wb") as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder
            )
        try:
            yield HudiReader(process, log, Path(folder))
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


@pytest.fixture(scope="session")
def hudi_reader() -> Iterator[HudiReader]:
    """hudi-rs. Skips where it cannot be had, which is a failure in CI."""
    try:
        with rust() as reader:
            yield reader
    except ProgramMissingError as error:
        pytest.skip(f"missing server: {error}")


@pytest.fixture(scope="session")
def hudi_spark() -> Iterator[HudiReader]:
    """Hudi on Spark. Skips where it cannot be had, which is a failure in CI."""
    try:
        with spark() as reader:
            yield reader
    except ProgramMissingError as error:
        pytest.skip(f"missing server: {error}")
