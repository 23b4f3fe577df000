"""Joins the parts of a look at a job. The application calls `assemble`, and so do tests that look by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sinkoperator import apply, reconcile
from sinkoperator.gather import Gather
from sinkoperator.observed import PlanSettings
from sinkoperator.plan import plan
from sinkoperator.publish import Publisher
from sinkoperator.world import Key, World
from sinkruntime.environment import Environment
from sinkruntime.kube import Api


class Coordinators(apply.Coordinators, reconcile.Coordinators, Protocol):
    """All that is asked of `sinkoperator.commits.coordinators.Coordinators`."""


class Telling(apply.Events, reconcile.Watcher, Protocol):
    """All that is asked of `sinkoperator.telling.Telling`."""


@dataclass(frozen=True, slots=True)
class Outside:
    """What the parts work with. `begins`: whether this replica may begin something new for the job."""

    api: Api
    world: World
    environment: Environment
    coordinators: Coordinators
    telling: Telling
    begins: Callable[[Key], bool]


def assemble(outside: Outside, settings: PlanSettings) -> reconcile.Reconciler:
    """What looks at jobs."""
    refusals = reconcile.Refusals()
    api, world, environment = outside.api, outside.world, outside.environment
    kept = reconcile.kept(refusals, outside.coordinators)
    services = apply.Services(api, world, environment, outside.coordinators, outside.telling, outside.begins)
    parts = reconcile.Parts(
        gather=Gather(api, world, settings, environment, kept),
        plan=plan,
        apply=apply.Apply(services),
        publisher=Publisher(api, world, environment),
        coordinators=outside.coordinators,
        watcher=outside.telling,
        holds=outside.begins,
    )
    return reconcile.Reconciler(parts, refusals)
