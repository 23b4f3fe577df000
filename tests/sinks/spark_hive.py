"""Reads Hive tables by Spark, with Spark's own client of the metastore: `spark_hive.py URI FOLDER TABLE...` prints one
JSON array a table, `spark_hive.py URI FOLDER --export OUT TABLE` writes the rows as Parquet.

Run as a program, because Spark takes a metastore only when its JVM starts. The
JVM is in a time zone far from UTC: instants must not change by that. Spark's client (Hive 2.3) knows no metastore 4.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 150
EXPORT_TIMEOUT_SECONDS = 1800
EXPORT = "--export"


def rows_by_spark(uri: str, folder: Path, *tables: str) -> list[list[dict[str, Any]]]:
    """Each table's rows; `folder` takes what Spark leaves. Raises RuntimeError with what Spark said."""
    return [json.loads(line) for line in _run(TIMEOUT_SECONDS, uri, str(folder), *tables)]


def export_by_spark(uri: str, folder: Path, table: str, out: Path) -> None:
    """Write the table's rows as Parquet into `out`; as `rows_by_spark`."""
    _run(EXPORT_TIMEOUT_SECONDS, uri, str(folder), EXPORT, str(out), table)


def _run(timeout_seconds: int, *arguments: str) -> list[str]:
    command = [sys.executable, __file__, *arguments]
    made = subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout_seconds)
    if made.returncode:
        raise RuntimeError(f"Spark did not read {arguments[-1]}: {made.stderr[-3_000:]}")
    return made.stdout.splitlines()


def main(uri: str, folder: str, *arguments: str) -> None:
    """Print or write the tables' rows."""
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import struct, to_json

    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.hive.metastore.uris": uri,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.local.dir": folder,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-Duser.timezone=America/New_York -XX:TieredStopAtLevel=1",
    }
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    written = {"timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS", "ignoreNullFields": "false"}
    tables = arguments
    if arguments[0] == EXPORT:
        _, out, table = arguments
        spark.table(table).write.mode("append").parquet(out)
        tables = ()
    for table in tables:
        rows = spark.table(table).select(to_json(struct("*"), written)).collect()
        print(json.dumps([json.loads(row[0]) for row in rows]))  # in ASCII: no line break but ours
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
