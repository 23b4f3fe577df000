"""Gets all programs, jars and environments that the tests' servers need, once, so that no time limit covers a download.

`make test` calls it. Says what cannot be had and why, and leaves it to the tests to skip or, in CI, to fail.
"""

import sys
import time
from collections.abc import Callable
from functools import partial

from tests.servers import (
    database_programs,
    delta_spark,
    hive_metastore,
    hudi_reader,
    iceberg_rest,
    iceberg_spark,
    kafka,
    paimon,
    programs,
    schema_registry,
)

#: Below this nothing was fetched.
TOLD_SECONDS = 1.0

WANTED: dict[str, Callable[[], object]] = {
    **{program.name: partial(programs.locate, program) for program in programs.ALL},
    "PostgreSQL and MariaDB": database_programs.locate,
    "Kafka": kafka.locate,
    "Spark's Kafka connector": kafka.locate_connector,
    "a schema registry": schema_registry.locate,
    "Iceberg's REST catalog": iceberg_rest.locate,
    "Iceberg for Spark": iceberg_spark.locate,
    "Delta for Spark": delta_spark.locate,
    "Hive metastore 4": partial(hive_metastore.locate, 4),
    "Hive metastore 3": partial(hive_metastore.locate, 3),
    "hudi-rs": hudi_reader.locate_rust,
    "Hudi for Spark": hudi_reader.locate_spark,
    "pypaimon": paimon.locate,
}


def main() -> None:
    """Locate, fetch, build or install each."""
    for name, locate in WANTED.items():
        began = time.monotonic()
        try:
            locate()
        except programs.ProgramMissingError as error:
            print(f"Note: {error}", file=sys.stderr)
            continue
        if (seconds := time.monotonic() - began) > TOLD_SECONDS:
            print(f"{name}: ready after {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
