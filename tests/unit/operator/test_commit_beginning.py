"""Coordinators that cannot begin: they wait by themselves, and no other job's waits for them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sinkoperator.commits import manager
from sinkoperator.commits.manager import Key
from sinkruntime.errors import LedgerUnavailable
from sinkruntime.ledger.memory import MemoryLedgerStore
from sinkruntime.ledger.store import Stored
from sinkruntime.protocol.ledger import Ledger
from tests.protocol.build import running
from tests.unit.operator.commit_jobs import KEY, Jobs, play
from tests.unit.operator.commit_world import Stage

OTHER: Key = ("elsewhere", "locked")


class Locked(MemoryLedgerStore):
    """Can be read, and takes no write: somebody's admission webhook refuses it."""

    async def replace(self, ledger: Ledger, version: str) -> Stored:
        raise LedgerUnavailable("denied the request")


def test_a_ledger_that_takes_no_write_keeps_no_other_jobs_coordinator_from_beginning(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "BEGINNING_MAX", 1)
    monkeypatch.setattr(manager, "BEGINNING_SECONDS", 0.05)
    locked = Locked()
    monkeypatch.setattr(Jobs, "store_of", lambda jobs, key: locked if key == OTHER else jobs.store)

    async def act(jobs: Jobs) -> None:
        charge = jobs.charge(jobs.manifest())
        await locked.create(running(token=0))
        jobs.manager.run(OTHER, charge)
        await asyncio.sleep(0.02)
        await jobs.begin(charge)
        assert jobs.manager.begun(KEY)
        assert not jobs.manager.begun(OTHER)
        await jobs.manager.stop(OTHER, 0.0)
        assert jobs.manager.keys() == [KEY]

    play(stage, tmp_path, act)
