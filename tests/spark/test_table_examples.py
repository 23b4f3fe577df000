"""The examples of the table formats, run by the command line as from a fresh clone, and read back."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from tests.servers import iceberg_spark
from tests.servers.hive_metastore import Metastore
from tests.servers.hudi_reader import HudiReader
from tests.servers.paimon import PaimonPeer
from tests.sinks.hive_place import files_of, records

pytestmark = [pytest.mark.spark, pytest.mark.integration]

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMAND = (sys.executable, "-m", "sinkruntime.cli.main")
RUN_TIMEOUT_SECONDS = 150


def example(name: str, folder: Path) -> Path:
    """The example alone, without what a run has left in it."""
    copied = folder / name
    shutil.copytree(EXAMPLES / name, copied, ignore=shutil.ignore_patterns("data", ".sinkjob"))
    return copied


def run(folder: Path, *arguments: str) -> str:
    ended = subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_SECONDS,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


def test_delta_keeps_the_last_states_and_the_history(tmp_path: Path) -> None:
    folder = example("delta", tmp_path)
    run(folder, "run", "job.yaml", "--master", "local[2]")
    accounts = DeltaTable(str(folder / "data" / "accounts")).to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["owner"], row["balance"]) for row in accounts) == [
        (1, "Ada", Decimal("12.25")),
        (3, "Grace", Decimal("99.90")),
    ]
    history = DeltaTable(str(folder / "data" / "history")).to_pyarrow_table().to_pylist()
    assert sorted((row["changed"], row["op"]) for row in history) == [(1, "I"), (2, "I"), (3, "U"), (4, "D"), (5, "I")]
    assert "version" in run(folder, "commits", "job.yaml")


@pytest.mark.usefixtures("iceberg_engine")
def test_iceberg_keeps_the_last_change_of_each_key(tmp_path: Path) -> None:
    folder = example("iceberg", tmp_path)
    run(folder, "run", "job.yaml", "--available-now", "--master", "local[2]")
    with closing(load_catalog("default", type="sql", uri=f"sqlite:///{folder}/data/catalog.db")) as catalog:
        metadata = catalog.load_table("web.people").metadata_location
    (people,) = iceberg_spark.ask((metadata, "select id, name, city from t order by id"))
    assert people == [
        {"id": 1, "name": "Ada", "city": "London"},
        {"id": 2, "name": "Grace", "city": "Arlington"},
    ]
    assert "snapshot" in run(folder, "commits", "job.yaml")


def test_hudi_keeps_the_last_state_of_each_record(tmp_path: Path, hudi_reader: HudiReader) -> None:
    """With more changes than the example has, so that Spark hashes many keys to its buckets, in every checkpoint."""
    folder = example("hudi", tmp_path)
    more: list[dict[str, Any]] = [
        {"id": number, "country": "XX", "owner": f"{number}", "balance": 0, "changed": 100 + number, "op": "I"}
        for number in range(1_000, 1_400)
    ]
    again = [{**row, "owner": "changed", "changed": 9_000} for row in more[::2]]
    for name, rows in (("4.json", more), ("5.json", again)):
        (folder / "changes" / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run(folder, "run", "job.yaml", "--master", "local[2]")
    rows = hudi_reader.rows(str(folder / "data" / "accounts"))
    found = {row["id"]: row for row in rows}
    assert len(rows) == len(found), "a key stands twice"
    small = {number: (row["owner"], row["balance"]) for number, row in found.items() if number < 1_000}
    assert small == {
        1: ("Ada", Decimal("20.00")),
        2: ("Bo", Decimal("3.00")),
        3: ("Céline", Decimal("7.25")),
        5: ("Eve", Decimal("1.00")),
    }
    assert sorted(number for number in found if number >= 1_000) == [row["id"] for row in more]
    assert {number for number, row in found.items() if row["owner"] == "changed"} == {row["id"] for row in again}
    assert "instant" in run(folder, "commits", "job.yaml")


def test_hive_adds_the_days_to_the_metastore(tmp_path: Path, hive_metastore: Metastore) -> None:
    folder = example("hive", tmp_path)
    manifest = folder / "job.yaml"
    text = manifest.read_text()
    assert "thrift://127.0.0.1:9083" in text
    manifest.write_text(text.replace("thrift://127.0.0.1:9083", hive_metastore.uri))
    run(folder, "run", "job.yaml", "--master", "local[2]")
    with hive_metastore.client() as client:
        days = client.get_partition_names("default", "visits", -1)
        client.drop_table("default", "visits", False)
    assert sorted(days) == ["day=2026-11-20", "day=2026-11-21"]
    found = {
        day: sorted(
            (row["visitor"], row["page"]) for path in files_of(folder / "data/visits" / day) for row in records(path)
        )
        for day in days
    }
    assert found == {"day=2026-11-20": [(1, "/"), (2, "/docs"), (3, None)], "day=2026-11-21": [(1, "/docs")]}
    assert all((folder / "data/visits" / day / "_SUCCESS").is_file() for day in days)


def test_paimon_keeps_the_last_states_and_the_history(tmp_path: Path, paimon_peer: PaimonPeer) -> None:
    folder = example("paimon", tmp_path)
    run(folder, "run", "job.yaml", "--master", "local[2]")
    accounts = paimon_peer.rows(folder / "data", "bank.accounts")
    assert sorted((row["id"], row["owner"], row["balance"]) for row in accounts) == [
        (1, "Ada", Decimal("12.25")),
        (3, "Grace", Decimal("99.90")),
    ]
    history = paimon_peer.rows(folder / "data", "bank.history")
    assert sorted((row["changed"], row["op"]) for row in history) == [(1, "I"), (2, "I"), (3, "U"), (4, "D"), (5, "I")]
    assert "snapshot" in run(folder, "commits", "job.yaml")
