"""Makes the SparkSession of a job, with the settings that the protocol needs.

Called once per process by the local runner and by the driver of a cluster. What a job may not override is refused
earlier (`sinkruntime.spec`); here ours win.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path

import pyspark
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from sinkruntime.errors import ConfigurationError
from sinkruntime.spark.failure import SPARK_ERRORS, first_line, with_cause
from sinkruntime.spark.java import find_java
from sinkruntime.spark.source import resolve
from sinkruntime.spec.imports import import_path
from sinkruntime.spec.models import SinkJobSpec

log = logging.getLogger(__name__)

#: Rows of an Arrow batch on its way to Python (Spark's default).
BATCH_ROWS = 10_000
#: No bound on the bytes of such a batch: Spark's Int.MaxValue. With any other it adds up all buffers again after each
#: row, which takes more than half of the passage's time. A job of rows above some 50 kB sets this, or fewer rows.
BATCH_BYTES_UNBOUNDED = 2**31 - 1
#: The longest a stopped query may take to end.
STOP_TIMEOUT_SECONDS = 60

#: What the protocol rests on.
_FIXED = {
    # Format 2 keeps state store ids in `commits/N`, which a decided batch that is skipped on replay never gets.
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "1",
    # Timestamps reach Arrow as UTC microseconds, and Parquet as what every reader knows.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.streaming.stopTimeout": f"{STOP_TIMEOUT_SECONDS}s",
}
#: What a job may choose otherwise by its `sparkConf`.
_DEFAULTS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
    "spark.sql.execution.arrow.maxBytesPerBatch": str(BATCH_BYTES_UNBOUNDED),
}
_LOCAL_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Where and for what Spark runs. `secrets` are Hadoop settings of `checkpoint.optionsFrom`, kept out of logs."""

    name: str
    spec: SinkJobSpec
    base: Path
    master: str = "local[*]"
    secrets: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)  # of this place; a job's `sparkConf` may change them
    fixed: Mapping[str, str] = field(default_factory=dict)  # of this place; they hold whatever a job says
    python_path: Sequence[str] = ()  # further folders with users' code
    log_settings: str = "log4j2.properties"

    @property
    def local(self) -> bool:
        """Whether Spark runs in this machine's process tree."""
        return self.master.startswith("local")

    def configuration(self) -> dict[str, str]:
        """All settings of Spark, without the secret ones."""
        spec = self.spec
        conf = dict(_DEFAULTS)
        if self.local:
            conf |= _LOCAL_DEFAULTS
            # 200 tasks per shuffle, Spark's default, are for a cluster.
            conf["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 2)
            conf["spark.driver.memory"] = str(spec.driver.memory)
        conf |= self.defaults
        conf |= spec.spark_conf
        conf |= {**_FIXED, **self.fixed}
        given = filter(None, [conf.get("spark.executorEnv.PYTHONPATH")])
        path = [*import_path(self.base, spec.deps.py_files), *self.python_path, *given]
        conf["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(path)
        jars = [resolve(jar, self.base) for jar in spec.deps.jars]
        if jars:
            conf["spark.jars"] = ",".join([*filter(None, [conf.get("spark.jars")]), *jars])
        return conf


def open_session(settings: SessionSettings) -> SparkSession:
    """Start Spark, or take the session that this process has; raises `ConfigurationError`."""
    find_java()
    for index, jar in enumerate(settings.spec.deps.jars):
        path = Path(resolve(jar, settings.base))
        if "://" not in jar and not path.is_file():
            raise ConfigurationError("JarMissing", f"{path} does not exist", path=f"spec.deps.jars[{index}]")
    if settings.local:  # workers need the packages of this very process, whatever the environment says
        os.environ["PYSPARK_PYTHON"] = sys.executable
    else:  # executors have the same image
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = settings.configuration()
    with as_file(files("sinkruntime.spark") / settings.log_settings) as quiet:
        key = "spark.driver.extraJavaOptions"
        conf[key] = " ".join(filter(None, [f"-Dlog4j2.configurationFile={quiet.as_uri()}", conf.get(key)]))
        builder = SparkSession.builder.master(settings.master).appName(settings.name)
        for name, value in conf.items():
            builder = builder.config(name, value)
        try:
            session = builder.getOrCreate()
        except SPARK_ERRORS as error:
            message = f"Spark did not start: {with_cause(error)}"
            raise ConfigurationError("SparkNotStarted", message, path="spec.sparkConf") from error
    if session.version != pyspark.__version__:
        message = f"Spark {session.version} was started, this release needs {pyspark.__version__}"
        raise ConfigurationError("SparkMismatch", message, advice="unset SPARK_HOME, or let it point to that Spark")
    for entry in settings.spec.deps.py_files:
        if "://" in entry or Path(resolve(entry, settings.base)).is_file():
            session.sparkContext.addPyFile(resolve(entry, settings.base))
    hadoop = session.sparkContext._jsc.hadoopConfiguration()
    for name, value in settings.secrets.items():
        hadoop.set(name, value)
    return session


def close_session(session: SparkSession) -> None:
    """End Spark, and its executors with it; a Spark that is gone already is no error."""
    try:
        session.stop()
    except (*SPARK_ERRORS, Py4JError, ConnectionError) as error:
        log.warning("Spark did not end in order: %s", first_line(error))
