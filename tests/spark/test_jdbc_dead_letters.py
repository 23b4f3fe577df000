"""Rows that PostgreSQL refuses, by the command line: in each checkpoint rows in = written + dead, and counted so."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from sinkruntime.local.workspace import Workspace
from sinkruntime.spec.bind import load_job
from tests.sinks.jdbc_places import PostgreSQLPlace

pytestmark = [pytest.mark.spark, pytest.mark.integration]
COMMAND = (sys.executable, "-m", "sinkruntime.cli.main", "run", "job.yaml", "--available-now", "--master", "local[2]")
RUN_TIMEOUT_SECONDS = 150
FILES, ROWS = 3, 200
MANIFEST = """\
apiVersion: sinkjob.io/v1alpha1
kind: SinkJob
metadata: {name: people, namespace: tests}
spec:
  source:
    format: json
    path: data
    schema: "id BIGINT, name STRING"
    options: {maxFilesPerTrigger: "1"}
  sinks:
  - name: people
    type: jdbc
    options: {table: SCHEMA.people, mode: MODE}
    optionsFrom: [{envRef: {name: PEOPLE_URL, key: url}}]
    deadLetter: {sink: rejects, maxRows: 100}
  - name: rejects
    type: jdbc
    options: {table: SCHEMA.rejects}
    optionsFrom: [{envRef: {name: PEOPLE_URL, key: url}}]
"""


def is_bad(number: int) -> bool:
    """Too long, null, too large, against the CHECK: one of each kind in a hundred rows."""
    return number % 25 == 7


def row_of(number: int) -> dict[str, object]:
    names = ["much too long", None, "large", "no"]
    kind = number // 25 % 4
    if not is_bad(number):
        return {"id": number, "name": f"n{number}"}
    return {"id": 2**40 + number if kind == 2 else number, "name": names[kind]}


@pytest.mark.parametrize("mode", ["staging", pytest.param("xa", marks=pytest.mark.exhaustive)])
def test_rows_in_are_rows_written_and_rows_dead(
    mode: str, postgresql_place: PostgreSQLPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = postgresql_place
    monkeypatch.setenv("PEOPLE_URL", str(place.options()["url"]))
    place.query("CREATE TABLE ~.people (id integer, name varchar(8) NOT NULL CHECK (name <> 'no'))")
    (tmp_path / "job.yaml").write_text(MANIFEST.replace("SCHEMA", place.schema).replace("MODE", mode))
    (tmp_path / "data").mkdir()
    for file in range(FILES):
        rows = [row_of(number) for number in range(file * ROWS, (file + 1) * ROWS)]
        (tmp_path / "data" / f"{file}.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    ended = subprocess.run(
        COMMAND, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=RUN_TIMEOUT_SECONDS
    )
    assert ended.returncode == 0, ended.stderr[-3000:]

    total = range(FILES * ROWS)
    written = {row[0] for row in place.query("SELECT id FROM ~.people")}
    dead = place.query("SELECT sink, checkpoint, reason, message <> '', row FROM ~.rejects ORDER BY checkpoint, row")
    assert written == {number for number in total if not is_bad(number)}
    assert place.query("SELECT count(*) FROM ~.people") == [(len(written),)]
    assert sorted(json.loads(row[4])["id"] % 2**40 for row in dead) == [number for number in total if is_bad(number)]
    assert {row[:1] + row[2:4] for row in dead} == {("people", "RowsRefused", True)}
    assert sorted({row[1] for row in dead}) == list(range(1, FILES + 1))
    monkeypatch.chdir(tmp_path)
    stored = asyncio.run(Workspace(load_job("job.yaml")).store.load())
    assert stored is not None
    counted = {name: sink.rows for name, sink in stored.ledger.sinks.items()}
    assert counted == {"people": len(written), "rejects": len(dead)}
    assert sum(counted.values()) == len(total)
