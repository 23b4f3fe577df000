"""`sinkjob doctor --resolve`: prepared transactions of a stopped job are settled by its ledger, others' by a person."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sinkruntime.api import Sink
from sinkruntime.cli.main import cli
from sinkruntime.driver.staging import Written
from sinkruntime.ledger.payloads import pack
from sinkruntime.local.workspace import Workspace
from sinkruntime.protocol.events import ClaimEpoch, Decide, Event, NoteRecovered, RaiseEpoch, RaiseToken
from sinkruntime.protocol.ledger import Authority, Ledger, Offsets, Part, Payload, Position, Record
from sinkruntime.protocol.machine import step
from sinkruntime.spec.bind import load_job
from tests.sinks import harness
from tests.sinks.contract import MORE, ROWS
from tests.sinks.harness import LEDGER, OTHER_LEDGER, Staged
from tests.sinks.jdbc_places import PostgreSQLPlace, make, visible

pytestmark = pytest.mark.integration
MANIFEST = """\
apiVersion: sinkjob.io/v1alpha1
kind: SinkJob
metadata: {name: stopped, namespace: tests}
spec:
  source: {format: rate}
  transform:
  - sql: SELECT value AS id, 'x' AS name FROM input
  sinks:
  - name: lake
    type: jdbc
    options: {table: SCHEMA.t, mode: xa}
    optionsFrom: [{envRef: {name: DOCTOR_URL, key: url}}]
"""


@pytest.fixture
def workspace(postgresql_place: PostgreSQLPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("DOCTOR_URL", str(postgresql_place.options()["url"]))
    (tmp_path / "job.yaml").write_text(MANIFEST.replace("SCHEMA", postgresql_place.schema))
    monkeypatch.chdir(tmp_path)
    return Workspace(load_job("job.yaml"))


def begun(workspace: Workspace, sink: Sink, staged: Staged) -> None:
    """A ledger in which a driver has decided this checkpoint, and died."""
    items = [(at, Written(1, sink.committable_serializer.serialize(value))) for at, value in staged.present()]
    data = pack(items)
    payload = Payload(hashlib.sha256(data).hexdigest(), len(data), inline=base64.b64encode(data).decode())
    position = Position("query", 0, Offsets("a"), Offsets("b"))
    record = Record(1, "record", 1, workspace.revision, position, {"lake": Part(payload, rows=len(ROWS))})
    events: list[Event] = [
        RaiseEpoch(1),
        ClaimEpoch(1, "driver"),
        RaiseToken(1, "coordinator"),
        NoteRecovered(Authority.TOKEN, 1, 1, final=True),
        Decide(record, "driver", max_pending=4, commit_timeout_seconds=60.0),
    ]

    async def apply() -> None:
        stored = await workspace.store.create(Ledger(LEDGER, workspace.name))
        for event in events:
            after, _ = step(stored.ledger, event)
            stored = await workspace.store.replace(after, stored.version)

    workspace.save_revision()
    asyncio.run(apply())


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", "job.yaml", *arguments])


def test_what_the_ledger_knows_is_committed_and_what_it_does_not_is_rolled_back(
    workspace: Workspace, postgresql_place: PostgreSQLPlace
) -> None:
    place = postgresql_place
    sink = make(place, mode="xa")
    decided = harness.stage(sink, 1, ROWS[:3], ROWS[3:])
    begun(workspace, sink, decided)
    undecided = harness.stage(sink, 2, MORE)
    foreign = harness.stage(make(place, OTHER_LEDGER, mode="xa"), 1, MORE)
    other, own = foreign.present()[0][1]["xid"], undecided.present()[0][1]["xid"]

    looked = doctor().output
    assert looked.count("this sink") == 3
    assert "another job or sink" in looked
    assert "s old, of user" in looked
    refused = doctor("--roll-back", own).output
    assert "its ledger says what becomes of it" in refused

    done = doctor("--resolve").output
    assert "ok    resolve: all 1 decided checkpoints are settled" in done, done
    assert place.prepared() == {other}
    assert visible(place) == Counter(ROWS)
    assert sink.evidence().checkpoint == 1

    assert f"ok    roll back: {other}, at lake" in doctor("--roll-back", other).output
    assert place.prepared() == set()
    assert "holds a prepared transaction" in doctor("--roll-back", other).output
    assert visible(place) == Counter(ROWS)


def test_a_job_that_never_ran_and_one_that_runs_are_left_alone(
    workspace: Workspace, postgresql_place: PostgreSQLPlace
) -> None:
    sink = make(postgresql_place, mode="xa")
    staged = harness.stage(sink, 1, ROWS)
    never = doctor("--resolve")
    assert (never.exit_code, "has no ledger here" in never.output) == (1, True)
    begun(workspace, sink, staged)
    with workspace.lock():
        running = doctor("--resolve")
    assert (running.exit_code, "is being run by process" in running.output) == (1, True)
    assert len(postgresql_place.prepared()) == 1
