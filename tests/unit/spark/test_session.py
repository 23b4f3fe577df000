"""The settings that Spark gets; nothing is started."""

from pathlib import Path

import pytest

from sinkruntime.spark.session import SessionSettings
from sinkruntime.spark.source import resolve
from sinkruntime.spec.imports import import_path
from sinkruntime.spec.models import SinkJobSpec


def settings(master: str = "local[*]", **fields: object) -> dict[str, str]:
    """The configuration for a spec with these fields, of a manifest in /base."""
    base = {"source": {"format": "rate"}, "sinks": [{"name": "s", "type": "console"}]}
    spec = SinkJobSpec.model_validate(base | fields)
    return SessionSettings("job", spec, Path("/base"), master, {"fs.s3a.secret.key": "hush"}).configuration()


def test_what_the_protocol_rests_on_is_not_the_users_to_change() -> None:
    key = "spark.sql.streaming.stateStore.checkpointFormatVersion"
    conf = settings(sparkConf={"spark.sql.session.timeZone": "Europe/Zurich", "spark.sql.shuffle.partitions": 7})
    assert conf["spark.sql.session.timeZone"] == "UTC"
    assert conf[key] == "1"
    assert conf["spark.sql.shuffle.partitions"] == "7"


def test_a_laptop_gets_no_ui_and_few_shuffle_tasks() -> None:
    conf = settings()
    assert conf["spark.ui.enabled"] == "false"
    assert int(conf["spark.sql.shuffle.partitions"]) < 200
    assert conf["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in settings("k8s://x")


def test_secrets_are_in_no_setting_that_spark_prints() -> None:
    assert "hush" not in str(settings())


def test_users_code_and_jars_are_found_from_the_manifest() -> None:
    conf = settings(deps={"pyFiles": ["lib/steps.py", "more", "/abs/x.zip"], "jars": ["a.jar", "https://h/b.jar"]})
    assert conf["spark.executorEnv.PYTHONPATH"] == "/base:/base/lib:/base/more:/abs/x.zip"
    assert conf["spark.jars"] == "/base/a.jar,https://h/b.jar"
    assert import_path(Path("/base"), ["more"]) == ["/base", "/base/more"]


@pytest.mark.parametrize(
    ("path", "resolved"),
    [("in", "/base/in"), ("/in", "/in"), ("s3a://b/in", "s3a://b/in"), ("file:///in", "file:///in")],
)
def test_paths_start_at_the_manifest(path: str, resolved: str) -> None:
    assert resolve(path, Path("/base")) == resolved
