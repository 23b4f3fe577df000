"""The examples of table formats run as they are, from their own folders, with a real Spark."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.hive_metastore import Metastore

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RUN_SECONDS = 200.0


def run(name: str, folder: Path, metastore: str = "") -> None:
    """Run a copy of the example to the end of its input: a checkpoint for each file."""
    shutil.copytree(EXAMPLES / name, folder, ignore=shutil.ignore_patterns("data", ".sinkjob"))
    manifest = folder / "job.yaml"
    if metastore:
        text = manifest.read_text()
        assert "thrift://127.0.0.1:9083" in text
        manifest.write_text(text.replace("thrift://127.0.0.1:9083", metastore))
    (source,) = (path for path in folder.iterdir() if path.is_dir())
    files = len(list(source.iterdir()))
    command = [sys.executable, "-m", "sinkruntime.cli.main", "run", str(manifest), "--available-now"]
    done = subprocess.run(
        [*command, "--master", "local[1]"], capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"ended: the source is done; {files} checkpoints decided; committed up to: "), last
    assert all(part.endswith(f" {files}") for part in last.partition("committed up to: ")[2].split(", ")), last


@pytest.mark.parametrize("name", ["delta", "hudi", "iceberg", "paimon", "routing"])
def test_an_example_runs_to_the_end_of_its_input(name: str, tmp_path: Path) -> None:
    run(name, tmp_path / name)


@pytest.mark.integration
def test_the_example_of_hive_runs_with_a_metastore(hive_metastore: Metastore, tmp_path: Path) -> None:
    run("hive", tmp_path / "hive", hive_metastore.uri)
