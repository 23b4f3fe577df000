"""One Spark for all tests of this folder: two cores, and a task may fail up to three times."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sinkruntime.spark.session import SessionSettings, open_session
from sinkruntime.spec.models import SinkJobSpec

REPOSITORY = Path(__file__).parents[2]


def spec(**fields: object) -> SinkJobSpec:
    """A job's spec with a source and a sink, and `fields` in it."""
    base = {"source": {"format": "rate"}, "sinks": [{"name": "lines", "type": "tests.spark.lines:LinesSink"}]}
    return SinkJobSpec.model_validate(base | fields)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Spark as a job gets it."""
    settings = SessionSettings("tests", spec(), REPOSITORY, master="local[2,4]")
    session = open_session(settings)
    yield session
    session.stop()
