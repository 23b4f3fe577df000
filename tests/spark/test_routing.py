"""Rows routed to three tables of each format by `sinkjob run`, from the example, and read back by others."""

from __future__ import annotations

import json
import os
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from tests.spark.test_table_examples import example, run

pytestmark = [pytest.mark.spark, pytest.mark.integration]


def test_each_row_arrives_once_in_the_table_that_it_names(tmp_path: Path) -> None:
    folder = example("routing", tmp_path)
    run(folder, "run", "job.yaml", "--master", "local[2]")

    data = folder / "data"
    catalog = load_catalog("default", type="sql", uri=f"sqlite:///{data}/catalog.db")
    names = sorted(name for _, name in catalog.list_tables("shop") if not name.startswith("sinkjob_routes_"))
    assert names == ["events_gift", "events_order", "events_refund"]
    kinds = {name: catalog.load_table(f"shop.{name}").scan().to_arrow() for name in names}
    found = Counter((name, number) for name, rows in kinds.items() for number in rows.column("id").to_pylist())
    orders = [("events_order", 1), ("events_order", 3), ("events_order", 6)]
    assert found == Counter([("events_gift", 4), *orders, ("events_refund", 2)])
    assert kinds["events_refund"].column("amount").to_pylist() == [Decimal("-3.50")]
    catalog.close()

    tables = {name: DeltaTable(str(data / "countries" / name)) for name in ("de", "fr", "us")}
    rows = {name: Counter(table.to_pyarrow_table().column("id").to_pylist()) for name, table in tables.items()}
    assert rows == {"de": Counter([1, 4]), "fr": Counter([2, 6]), "us": Counter([3, 5])}
    assert [field.name for field in tables["de"].schema().fields] == ["id", "kind", "amount"]

    lines = [line for path in sorted((data / "refused").glob("*.json")) for line in path.read_text().splitlines()]
    (letter,) = [json.loads(line) for line in lines]
    assert (letter["sink"], letter["reason"], json.loads(letter["row"])["id"]) == ("kinds", "BadTableName", 5)

    told = json.loads(run(folder, "commits", "job.yaml", "--output", "json"))
    checkpoints = told["checkpoints"] if isinstance(told, dict) else told
    assert all(proof["proved"] == "yes" for entry in checkpoints for proof in entry["evidence"].values() if proof)
    assert "table by table" in run(folder, "plan", "job.yaml")
    assert not [name for name in os.listdir(data / "countries" / "_sinkjob") if not name.startswith("routes-")]
