"""Reads Hive tables by Spark, with Spark's own client of the metastore: `spark_hive.py URI FOLDER TABLE...`.

Run as a program, because Spark takes a metastore only when its JVM starts. Prints one JSON array a table. The
JVM is in a time zone far from UTC: instants must not change by that. Spark's client (Hive 2.3) knows no metastore 4.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 150


def rows_by_spark(uri: str, folder: Path, *tables: str) -> list[list[dict[str, Any]]]:
    """Each table's rows; `folder` takes what Spark leaves. Raises RuntimeError with what Spark said."""
    command = [sys.executable, __file__, uri, str(folder), *tables]
    made = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    if made.returncode:
        raise RuntimeError(f"Spark did not read {', '.join(tables)}: {made.stderr[-3_000:]}")
    return [json.loads(line) for line in made.stdout.splitlines()]


def main(uri: str, folder: str, *tables: str) -> None:
    """Print the tables' rows."""
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import struct, to_json

    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.hive.metastore.uris": uri,
        "spark.sql.session.timeZone": "UTC",
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
    for table in tables:
        rows = spark.table(table).select(to_json(struct("*"), written)).collect()
        print(json.dumps([json.loads(row[0]) for row in rows]))  # in ASCII: no line break but ours
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
