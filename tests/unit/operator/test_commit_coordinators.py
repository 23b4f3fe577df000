"""The manager as the reconciler sees it: a plan's actions in, facts for the next plan out, and nothing waited for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from sinkoperator.actions import BeginAbort, RunCoordinator
from sinkoperator.commits.coordinators import Coordinators
from sinkoperator.observed import (
    CommitterPod,
    CoordinatorFacts,
    JobObject,
    Observed,
    PlanSettings,
    PreparedFacts,
    Revision,
)
from sinkruntime.kube.names import committer_holder
from sinkruntime.protocol.ledger import CheckpointState, PartState
from sinkruntime.spec.models import SinkJobSpec
from tests.protocol.build import part_of, running
from tests.unit.operator.commit_jobs import KEY, Jobs, play, settled
from tests.unit.operator.commit_world import Stage, until

RUN = RunCoordinator("rev-1", "rev-1/0/x", why="commits may be owed")


def observed(jobs: Jobs, valid: bool = True, kept: bool = True) -> Observed:
    """The job, its manifest valid or not (any more), its revision kept or not."""
    manifest = jobs.manifest()
    jobs.charge(manifest)
    spec = SinkJobSpec.model_validate(manifest, by_alias=True, by_name=False) if valid else None
    job = JobObject(*KEY, uid="1", generation=1, created=0.0, raw=manifest, spec=spec)
    revisions = (Revision("rev-1", 1, "", manifest),) if kept else ()
    return Observed(job=job, now=0.0, settings=PlanSettings(), revisions=revisions)


def test_a_coordinator_runs_as_the_plan_says_and_ends_without_being_waited_for(stage: Stage, tmp_path: Path) -> None:
    async def act(jobs: Jobs) -> None:
        coordinators = Coordinators(jobs.manager)
        assert coordinators.facts(KEY) == CoordinatorFacts()
        await jobs.store.create(running(token=0))
        await coordinators.run(KEY, observed(jobs), RUN)
        assert coordinators.facts(KEY) == CoordinatorFacts(running=True)
        await jobs.until_begun()
        assert coordinators.facts(KEY).begun == RUN.intent
        await jobs.decide(1)
        await jobs.until(settled)
        assert coordinators.facts(KEY).prepared == PreparedFacts("a", 2, 0.0), "what the sink gauged"
        jobs.place.behave("commit", "hang")
        await jobs.decide(2)
        await until(lambda: len(jobs.place.calls("commit")) == 2)
        async with asyncio.timeout(0.5):
            await coordinators.stop(KEY)
            await coordinators.stop(KEY)
        assert not coordinators.facts(KEY).running
        await until(lambda: not list(jobs.manager.keys()))

    play(stage, tmp_path, act)


def test_pending_checkpoints_of_a_manifest_that_is_not_valid_any_more_are_committed(
    stage: Stage, tmp_path: Path
) -> None:
    async def act(jobs: Jobs) -> None:
        coordinators = Coordinators(jobs.manager)
        await jobs.store.create(running(token=0))
        await coordinators.run(KEY, observed(jobs, valid=False, kept=False), RUN)
        assert not coordinators.facts(KEY).running
        await coordinators.run(KEY, observed(jobs, valid=False), RUN)
        await jobs.until_begun()
        await jobs.decide(1)
        await jobs.until(settled)

    play(stage, tmp_path, act)


def test_what_keeps_a_sink_from_being_opened_is_a_fact_for_the_plan(stage: Stage, tmp_path: Path) -> None:
    async def act(jobs: Jobs) -> None:
        coordinators = Coordinators(jobs.manager)
        await jobs.store.create(running(token=0))
        seen = observed(jobs)
        jobs.cluster.objects.clear()
        await coordinators.run(KEY, seen, RUN)
        await jobs.decide(1)
        await until(lambda: coordinators.facts(KEY).trouble is not None)
        trouble = coordinators.facts(KEY).trouble
        assert trouble is not None
        assert trouble.reason == "RevisionLost"

    play(stage, tmp_path, act)


def test_an_abort_waits_for_a_coordinator_in_its_tenure(stage: Stage, tmp_path: Path) -> None:
    async def act(jobs: Jobs) -> None:
        coordinators = Coordinators(jobs.manager)
        abort = BeginAbort(1, "operator", "deletionPolicy: Abort", why="the SinkJob is deleted")
        await jobs.store.create(running(token=0))
        await jobs.decide(1, ['{"n":"refuse"}'])
        await coordinators.abort(KEY, observed(jobs), abort)
        assert [record.state for record in (await jobs.ledger()).records] == [CheckpointState.DECIDED]
        await coordinators.run(KEY, observed(jobs), replace(RUN))
        await jobs.until(lambda ledger: part_of(ledger, 1, "a").state is PartState.HELD)
        await coordinators.abort(KEY, observed(jobs), abort)
        ledger = await jobs.until(lambda ledger: bool(ledger.aborts))
        assert (ledger.aborts[0].who, ledger.aborts[0].why) == ("operator", "deletionPolicy: Abort")
        assert jobs.place.committed() == []

    play(stage, tmp_path, act)


def test_a_takeover_alone_does_not_try_again_what_is_held(stage: Stage, tmp_path: Path) -> None:
    async def act(jobs: Jobs) -> None:
        charge = jobs.charge(jobs.manifest())
        await jobs.begin(charge)
        await jobs.decide(1, ['{"n":"refuse"}'])
        await jobs.until(lambda ledger: part_of(ledger, 1, "a").state is PartState.HELD)
        commits = len(jobs.place.calls("commit"))
        for intent, retried in (("rev-1/0/x", "rev-1/0"), ("rev-1/0/y", "rev-1/0")):
            await jobs.manager.drop(KEY)  # the next holder of the shard knows what the status says
            jobs.manager.run(KEY, replace(charge, intent=intent, retried=retried))
            await jobs.until_begun()
            await asyncio.sleep(0.3)
            assert len(jobs.place.calls("commit")) == commits, intent
            assert part_of(await jobs.ledger(), 1, "a").state is PartState.HELD
        await jobs.manager.drop(KEY)
        jobs.manager.run(KEY, replace(charge, intent="rev-1/1/x", retried="rev-1/0"))
        await until(lambda: len(jobs.place.calls("commit")) > commits)

    play(stage, tmp_path, act)


def test_an_abort_is_put_on_record_for_a_committer_pod_in_its_tenure(stage: Stage, tmp_path: Path) -> None:
    """With `runOn: Job` no coordinator of the operator's runs: nobody else would ever begin it."""

    async def act(jobs: Jobs) -> None:
        pod = CommitterPod("flights-committer-1", "uid-1", 1, "rev-1", RUN.intent, "Running")
        seen = replace(observed(jobs), committers=(pod,))
        coordinators = Coordinators(jobs.manager)
        holder = f"{committer_holder(pod.name, pod.uid)}/a"
        await jobs.store.create(replace(running(token=1), holder="another"))
        await jobs.decide(1)
        abort = BeginAbort(1, "deletionPolicy", "the SinkJob was deleted", why="it is deleted")
        await coordinators.abort(KEY, seen, abort)
        stored = await jobs.store.load()
        assert stored is not None
        assert [record.state for record in stored.ledger.records] == [CheckpointState.DECIDED], "another's tenure"

        await jobs.store.replace(replace(stored.ledger, holder=holder), stored.version)
        await coordinators.abort(KEY, seen, abort)
        await coordinators.abort(KEY, seen, abort)

        assert [record.state for record in (await jobs.ledger()).records] == [CheckpointState.ABORTING]

    play(stage, tmp_path, act)
