"""Who gets a worker process: fair between jobs, no namespace takes all, the idle one that was used longest ago goes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sinkoperator.commits.process import Worker
from sinkoperator.commits.settings import WorkerSettings
from sinkruntime.coordinator.runner import NotStarted
from tests.unit.operator.commit_world import Place, Stage, until


def rest(place: Place, *workers: Worker) -> None:
    for worker in workers:
        place.pool.rest(worker)


def test_the_worker_that_was_used_longest_ago_makes_room(stage: Stage, tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        first, second = await place.open(job="first"), await place.open(job="second")
        rest(place, second, first)
        third = await place.open(job="third")
        assert second.gone
        assert not first.gone
        assert set(place.pool.workers) == {first, third}

    stage.play(tmp_path, act, workers=3, workers_per_namespace=2)


def test_a_worker_in_use_is_not_closed_for_another_job_which_waits_for_its_time_only(
    stage: Stage, tmp_path: Path
) -> None:
    async def act(place: Place) -> None:
        busy = await place.open()
        with pytest.raises(NotStarted, match=r"no worker process was free within 0\.2 s"):
            await place.open(seconds=0.2)
        assert not busy.gone
        assert place.pool.waiting == 0
        rest(place, busy)
        assert not (await place.open()).gone
        assert busy.gone

    stage.play(tmp_path, act, workers=1)


def test_a_namespace_cannot_take_every_slot(stage: Stage, tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        for _ in range(2):
            await place.open(namespace="greedy")
        with pytest.raises(NotStarted):
            await place.open(namespace="greedy", seconds=0.2)
        await place.open(namespace="modest", seconds=5.0)
        assert len(place.pool.workers) == 3

    stage.play(tmp_path, act, workers=3, workers_per_namespace=3)


def test_a_job_that_waits_once_is_not_behind_a_job_that_waits_often(stage: Stage, tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        busy = await place.open(job="busy")
        served: list[str] = []

        async def one(job: str) -> None:
            worker = await place.open(job=job)
            served.append(job)
            rest(place, worker)

        tasks = []
        for job in ("many", "many", "many", "one"):
            tasks.append(asyncio.create_task(one(job)))
            await asyncio.sleep(0)
        rest(place, busy)
        await asyncio.gather(*tasks)
        assert served == ["many", "one", "many", "many"]

    stage.play(tmp_path, act, workers=1)


def test_whoever_gives_up_waiting_leaves_no_slot_taken(stage: Stage, tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        busy = await place.open()
        waiting = asyncio.create_task(place.open())
        await until(lambda: place.pool.waiting == 1)
        rest(place, busy)
        waiting.cancel()
        await asyncio.wait([waiting])
        await until(lambda: place.pool.workers == ())
        assert not (await place.open(seconds=5.0)).gone

    stage.play(tmp_path, act, workers=1)


def test_an_idle_worker_closes_after_a_while(stage: Stage, tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        idle, busy = await place.open(), await place.open()
        rest(place, idle)
        await until(lambda: bool(idle.gone))
        assert place.calls("close") != []
        assert not busy.gone

    stage.play(tmp_path, act, idle_seconds=0.2)


@pytest.mark.parametrize(("workers", "asked", "share"), [(16, 12, 12), (16, 99, 15), (2, 2, 1), (1, 12, 1), (16, 0, 1)])
def test_one_slot_stays_for_other_namespaces_where_there_are_two(workers: int, asked: int, share: int) -> None:
    assert WorkerSettings(workers=workers, workers_per_namespace=asked).namespace_share == share
