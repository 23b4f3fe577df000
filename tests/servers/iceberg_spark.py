"""Iceberg's own engine: Spark with the Iceberg runtime, in a process of its own, reads tables back.

Called by the tests of the `iceberg` sink, its kill matrix and its benchmark. Its jar comes from Maven, once, into the
cache of the tests. `python -m tests.servers.iceberg_spark` is that process: it reads questions and prints answers.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.servers.jars import locate_jars
from tests.servers.programs import ProgramMissingError

VERSION = "1.12.0"
LISTING = Path(__file__).with_name("iceberg_spark_jars.txt")
TIMEOUT_SECONDS = 150
MARK = "answers: "


def locate() -> str:
    """The path of the runtime's jar. Raises ProgramMissingError."""
    (jar,) = locate_jars(f"iceberg-spark-{VERSION}", LISTING).iterdir()
    return str(jar)


@pytest.fixture(scope="session")
def iceberg_engine() -> None:
    """For tests that `ask`. Skips where the runtime cannot be had, which is a failure in CI."""
    try:
        locate()
    except ProgramMissingError as error:
        pytest.skip(f"missing engine: {error}")


def ask(*questions: tuple[str, str], timeout_seconds: int = TIMEOUT_SECONDS) -> list[list[dict[str, Any]]]:
    """The rows of each question: a table's metadata file, and SQL over the view `t`. Values as JSON has them."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.servers.iceberg_spark", locate()]
    environment = os.environ | {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    made = subprocess.run(
        command, input=json.dumps(questions), cwd=root, env=environment, capture_output=True, text=True,
        timeout=timeout_seconds, check=False,
    )  # fmt: skip
    lines = [line for line in made.stdout.splitlines() if line.startswith(MARK)]
    if made.returncode or not lines:
        raise RuntimeError(f"Spark with Iceberg failed:\n{made.stderr[-3000:]}")
    answers: list[list[dict[str, Any]]] = json.loads(lines[-1].removeprefix(MARK))
    return answers


def main() -> None:
    """Answer the questions of the standard input."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.jars", sys.argv[1])
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    answers = []
    for metadata, sql in json.load(sys.stdin):
        spark.read.format("iceberg").load(metadata).createOrReplaceTempView("t")
        answers.append([json.loads(row) for row in spark.sql(sql).toJSON().collect()])
    print(MARK + json.dumps(answers), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
