"""Delta's own engine: Spark with Delta Lake, in a process of its own, reads tables back and writes beside us.

Called by the tests of the `delta` sink, its kill matrix and its benchmark. Its jars come from Maven, once, into the
cache of the tests. `python -m tests.servers.delta_spark` is that process: it reads questions and prints answers.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.servers.jars import locate_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION = "4.4.0"
LISTING = Path(__file__).with_name("delta_spark_jars.txt")
TIMEOUT_SECONDS = 170
MARK = "answers: "

SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
}


def locate() -> str:
    """The paths of the jars, as `spark.jars` has them. Raises ProgramMissingError."""
    return ",".join(sorted(str(jar) for jar in locate_jars(f"delta-spark-{VERSION}", LISTING).iterdir()))


def append(path: Path, app_id: str, version: int) -> str:
    """A question: append the row (-1, 'spark') by Spark's idempotent write, `txnAppId` and `txnVersion`."""
    return f"append {json.dumps([str(path), app_id, version])}"


def ask(*questions: str, timeout_seconds: int = TIMEOUT_SECONDS) -> list[list[dict[str, Any]]]:
    """The rows of each question, SQL over delta.`/path` or an `append`, in order. Values as JSON has them."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.servers.delta_spark", locate()]
    environment = os.environ | {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    made = subprocess.run(
        command, input=json.dumps(questions), cwd=root, env=environment, capture_output=True, text=True,
        timeout=timeout_seconds, check=False,
    )  # fmt: skip
    lines = [line for line in made.stdout.splitlines() if line.startswith(MARK)]
    if made.returncode or not lines:
        raise RuntimeError(f"Spark with Delta failed:\n{made.stderr[-3000:]}")
    answers: list[list[dict[str, Any]]] = json.loads(lines[-1].removeprefix(MARK))
    return answers


def main() -> None:
    """Answer the questions of the standard input."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.jars", sys.argv[1])
    settings = {
        **SETTINGS,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    answers = [_answer(spark, question) for question in json.load(sys.stdin)]
    print(MARK + json.dumps(answers), flush=True)
    spark.stop()


def _answer(spark: "SparkSession", question: str) -> list[dict[str, Any]]:
    if not question.startswith("append "):
        return [json.loads(row) for row in spark.sql(question).toJSON().collect()]
    path, app_id, version = json.loads(question.removeprefix("append "))
    rows = spark.sql("SELECT CAST(-1 AS BIGINT) AS id, 'spark' AS name")
    writer = rows.write.format("delta").option("txnAppId", app_id).option("txnVersion", version)
    writer.mode("append").save(path)
    return []


if __name__ == "__main__":
    main()
