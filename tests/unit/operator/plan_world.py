"""Builders of what a plan is made from, for the tests of the plan: small values with everything at its default."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from sinkoperator import names
from sinkoperator.actions import Action, Decision, Emit
from sinkoperator.observed import (
    CoordinatorFacts,
    DriverPod,
    JobObject,
    LedgerObject,
    Observed,
    PlanSettings,
    Revision,
    Trouble,
)
from sinkoperator.plan import plan
from sinkruntime.errors import ManifestError
from sinkruntime.protocol.ledger import (
    Authority,
    Ledger,
    Offsets,
    Part,
    PartState,
    Position,
    Record,
    SinkEntry,
)
from sinkruntime.spec.digest import revision as revision_of
from sinkruntime.spec.digest import sinks_revision
from sinkruntime.spec.load import parse_object
from sinkruntime.spec.models import API_VERSION, KIND, SinkJobSpec

NOW = 1_795_000_000.0
UID = "job-uid"
NAME = "flights"
RAW: dict[str, Any] = {
    "source": {"format": "rate"},
    "checkpoint": {"location": "s3a://bucket/checkpoint"},
    "sinks": [{"name": "lake", "type": "file", "options": {"path": "s3a://bucket/out"}}],
}
BATCH: dict[str, Any] = {"mode": "Batch", "source": {"format": "parquet", "path": "s3a://bucket/in"}}


def raw_of(**changes: Any) -> dict[str, Any]:
    """A manifest's `spec` with these fields changed."""
    return {**RAW, **changes}


def read(raw: Mapping[str, Any]) -> tuple[SinkJobSpec | None, ManifestError | None]:
    """The spec, or what is wrong with it."""
    return _read(json.dumps(raw))


@cache
def _read(text: str) -> tuple[SinkJobSpec | None, ManifestError | None]:
    raw = json.loads(text)
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": NAME, "namespace": "data"}, "spec": raw}
    try:
        return parse_object(body).spec, None
    except ManifestError as error:
        return None, error


def spec_of(**changes: Any) -> SinkJobSpec:
    """A valid spec with these fields changed."""
    spec, error = read(raw_of(**changes))
    assert spec is not None, error
    return spec


def job(raw: Mapping[str, Any] | None = None, **fields: Any) -> JobObject:
    """The SinkJob; `raw` is its spec."""
    raw = RAW if raw is None else raw
    spec, error = read(raw)
    made = JobObject(
        namespace="data",
        name=NAME,
        uid=UID,
        generation=1,
        created=NOW - 100,
        raw=raw,
        spec=spec,
        problems=error.problems if error else (),
        finalizers=(names.JOB_FINALIZER,),
    )
    return replace(made, **fields)


def intent(**changes: Any) -> str:
    """What a person who gives this manifest asks for."""
    return names.intent(spec_of(**changes))


def revision(number: int = 1, **changes: Any) -> Revision:
    """The kept revision of a manifest."""
    spec = spec_of(**changes)
    return Revision(revision_of(spec), number, sinks_revision(spec), raw_of(**changes))


def driver(epoch: int = 1, *, changes: Mapping[str, Any] | None = None, **fields: Any) -> DriverPod:
    """The driver of an epoch, running and ready, started for the manifest with these changes."""
    spec = spec_of(**(changes or {}))
    made = DriverPod(
        name=names.driver_name(NAME, epoch),
        uid=f"pod-{epoch}",
        epoch=epoch,
        revision=revision_of(spec),
        intent=names.intent(spec),
        phase="Running",
        created=NOW - 60,
        started=NOW - 50,
        ready=True,
    )
    return replace(made, **fields)


def ended(epoch: int = 1, code: int = 1, said: Trouble | None = None, **fields: Any) -> DriverPod:
    """The driver of an epoch that has ended just now."""
    phase = "Succeeded" if code == 0 else "Failed"
    last: dict[str, Any] = {"exit_code": code, "termination": said, "phase": phase, "finished": NOW, "ready": False}
    return driver(epoch, **(last | fields))


def part(state: PartState = PartState.PENDING, authority: Authority = Authority.TOKEN, **fields: Any) -> Part:
    """One sink's part of a checkpoint."""
    return replace(Part(state=state, authority=authority, rows=10), **fields)


def record(number: int, epoch: int = 1, parts: Mapping[str, Part] | None = None, **fields: Any) -> Record:
    """A decided checkpoint of the default manifest."""
    at = Position("query", number - 1, Offsets(f"{number - 1}"), Offsets(f"{number}"))
    name = revision_of(spec_of())
    return replace(Record(number, f"record-{number}", epoch, name, at, parts or {"lake": part()}), **fields)


def ledger(epoch: int = 1, *records: Record, claim: str = "claimed", **fields: Any) -> Ledger:
    """A ledger in this epoch, claimed and recovered; `records` are pending in it."""
    decided = max([each.number for each in records], default=0)
    made = Ledger(
        "ledger-1",
        f"data/{NAME}",
        epoch=epoch,
        claim=claim,
        decided=decided,
        firsts=(1,) * epoch,
        closed={Authority.TOKEN: epoch},
        recovered={Authority.TOKEN: epoch},
        records=records,
        sinks={"lake": SinkEntry(1)},
    )
    return replace(made, **fields)


def held(found: Ledger | None, **fields: Any) -> LedgerObject:
    """The ledger's ConfigMap."""
    return replace(LedgerObject("ledger-uid", found, owner_uid=UID), **fields)


def observed(
    found: Ledger | None = None, *drivers: DriverPod, raw: Mapping[str, Any] | None = None, **fields: Any
) -> Observed:
    """What was gathered: the default job, its revision kept, this ledger, these drivers, a coordinator that works."""
    about = job(raw)
    made = Observed(
        job=about,
        now=NOW,
        settings=PlanSettings(driver_image="sinkjob-driver"),
        ledger=held(found) if found is not None else None,
        run_on={"lake": "Operator"},
        drivers=drivers,
        revisions=(revision(),),
        coordinator=CoordinatorFacts(begun=names.intent(about.spec) if about.spec else ""),
    )
    return replace(made, **fields)


def with_status(made: Observed, **fields: Any) -> Observed:
    """The same, as the next look has it: with the status that this plan makes."""
    return replace(made, job=replace(made.job, status=dict(plan(made).status)), **fields)


def acts(decision: Decision) -> list[Action]:
    """The actions but for events."""
    return [action for action in decision.actions if not isinstance(action, Emit)]


def kinds(decision: Decision) -> list[str]:
    """The names of the actions but for events and what is repeated on every look."""
    return [type(action).__name__ for action in acts(decision) if type(action).__name__ != "RunCoordinator"]


def told(decision: Decision) -> list[str]:
    """The reasons of the events."""
    return [action.reason for action in decision.actions if isinstance(action, Emit)]


def condition(decision: Decision, kind: str) -> tuple[str, str]:
    """Status and reason of a condition; ("", "") where it is left out."""
    for entry in decision.status["conditions"]:
        if entry["type"] == kind:
            return entry["status"], entry["reason"]
    return "", ""
