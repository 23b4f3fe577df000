"""What `sinkjob plan` says: a plain value, and its text. Reads manifest, ledger and (unless offline) the targets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sinkruntime.api import Guarantee, Offer, Sink
from sinkruntime.cli.output import fields, seconds_text, without_empty
from sinkruntime.job.sinks import make_sinks
from sinkruntime.local.inspection import ask_facts
from sinkruntime.local.workspace import Workspace
from sinkruntime.protocol.ledger import Ledger
from sinkruntime.spec.bind import BoundSink
from sinkruntime.spec.models import SinkJobSpec

_NO_LEDGER_ID = "none"  # of a job that never ran: its targets can hold nothing of it


def plan_of(workspace: Workspace, ledger: Ledger | None, offline: bool) -> dict[str, Any]:
    """All that `plan` says, as it stands in JSON."""
    job = workspace.job
    spec = job.manifest.job.spec
    sinks = make_sinks(job, ledger.ledger_id if ledger else _NO_LEDGER_ID)
    facts = {} if offline else ask_facts(workspace, sinks)
    return {
        "job": workspace.name,
        "revision": workspace.revision,
        "mode": spec.mode,
        "source": _source(spec),
        "transform": [step.sql or f"python {step.python}" for step in spec.transform],
        "trigger": _trigger(spec),
        "checkpointLocation": workspace.checkpoint_location,
        "commit": {"maxPending": spec.commit.max_pending, "timeout": str(spec.commit.timeout)},
        "sinks": [_sink(bound, sinks[bound.spec.name], facts.get(bound.spec.name)) for bound in job.sinks],
        "sinceLastRun": _since(workspace, ledger),
        "recovery": _recovery(spec, ledger),
    }


def _source(spec: SinkJobSpec) -> str:
    path = f" {spec.source.path}" if spec.source.path else ""
    return f"{spec.source.format}{path}"


def _trigger(spec: SinkJobSpec) -> str:
    if spec.mode == "Batch":
        return "one checkpoint of all there is, then the job ends"
    if spec.trigger.type == "AvailableNow":
        return "checkpoint after checkpoint until all that the source holds is done, then the job ends"
    return f"a checkpoint every {spec.trigger.interval}, until it is stopped"


def _sink(bound: BoundSink, sink: Sink, facts: Mapping[str, object] | str | None) -> dict[str, Any]:
    reached = isinstance(facts, Mapping)
    offer = bound.sink_class.guarantee(bound.options, facts if isinstance(facts, Mapping) else {})
    aggregated = sink.create_aggregated_committer() is not None
    committer = sink.create_committer() is not None
    asked = bound.spec.guarantee
    return without_empty(
        {
            "name": bound.spec.name,
            "type": bound.spec.type,
            "guarantee": offer.guarantee.value,
            "asked": asked or "the strongest it can give",
            "why": offer.why,
            "refused": _refused(offer, asked),
            "columns": list(bound.spec.select or []),
            "where": bound.spec.where,
            "committed": bound.spec.commit.run_on or str(bound.sink_class.default_run_on(bound.options)),
            "visible": _visibility(offer, committer, aggregated),
            "evidence": _evidence(sink),
            "stagedLife": _life(sink.staged_life_seconds(), committer or aggregated),
            "target": _reached(facts) if not reached else "reached",
        }
    )


def _refused(offer: Offer, asked: str | None) -> str:
    """The target may give less than the options alone promise; `run` then refuses to start."""
    if asked is None or offer.guarantee >= Guarantee(asked):
        return ""
    return f"{asked} is asked for and the target gives {offer.guarantee.value}: the job will not start"


def _reached(facts: Mapping[str, object] | str | None) -> str:
    return "not asked" if facts is None else f"not reached: {facts}"


def _visibility(offer: Offer, committer: bool, aggregated: bool) -> str:
    if offer.guarantee is Guarantee.AT_LEAST_ONCE and (committer or aggregated):
        return "after the decision, checkpoint by checkpoint; again after a crash"
    if offer.visible:
        return offer.visible
    if aggregated and committer:
        return "writer by writer, then the checkpoint is completed in one operation"
    if aggregated:
        return "the whole checkpoint at once, in one atomic operation"
    if committer:
        return (
            "after the decision, each writer's rows by themselves: for a moment a reader may see part of a checkpoint"
        )
    return "while they are written, before the decision: this sink stages nothing"


def _evidence(sink: Sink) -> str:
    if type(sink).evidence is not Sink.evidence:
        return "in the target: the last checkpoint of this job and sink; `sinkjob commits` reads it"
    if type(sink).prove is not Sink.prove:
        return "in the target, checkpoint by checkpoint; `sinkjob commits` reads it"
    return "none"


def _life(seconds: float | None, stages: bool) -> str:
    if not stages:
        return ""
    if seconds is None:
        return "for ever: staged rows wait until they are committed, however long job or target are down"
    bound = seconds_text(seconds)
    return f"{bound}: job and target together may be down no longer, or decided rows are lost (CommittableLost)"


def _since(workspace: Workspace, ledger: Ledger | None) -> dict[str, Any]:
    """What differs from the ledger: its last revision, the sinks it knows, what is still to be committed."""
    if ledger is None:
        return {"run": "first run: there is no ledger, one will be made", "epoch": 1}
    spec = workspace.job.manifest.job.spec
    names = {sink.name for sink in spec.sinks}
    revisions = [entry.revision for entry in ledger.history] + [record.revision for record in ledger.records]
    last = revisions[-1] if revisions else ""
    says = "the same revision as the last checkpoint" if last == workspace.revision else "another revision"
    return without_empty(
        {
            "run": f"goes on after checkpoint {ledger.decided}: {says}" if last else "goes on, nothing is decided yet",
            "epoch": ledger.epoch + 1,
            "changed": _changed(workspace, last) if last not in ("", workspace.revision) else [],
            "newSinks": sorted(names - set(ledger.sinks)),
            "removedSinks": sorted(set(ledger.sinks) - names),
            "pending": [f"checkpoint {record.number} is committed first" for record in ledger.pending],
        }
    )


def _changed(workspace: Workspace, revision: str) -> list[str]:
    """Which fields of the spec are not as they were; unknown where the former manifest is gone."""
    path = workspace.root / "revisions" / f"{revision}.json"
    try:
        before: dict[str, Any] = json.loads(path.read_text())["spec"]
    except (OSError, ValueError, KeyError):
        return ["unknown: the former manifest is not kept"]
    now = json.loads(workspace.job.manifest.job.model_dump_json(by_alias=True, exclude_defaults=True))["spec"]
    return sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))


def _recovery(spec: SinkJobSpec, ledger: Ledger | None) -> list[str]:
    """The words of `recovery.accept` that would count, and those that are used up."""
    used = {a.reason for a in (ledger.acceptances if ledger else ()) if a.nonce == spec.recovery.nonce}
    return [
        f"{reason}: used up, raise recovery.nonce to give it again"
        if reason in used
        else f"{reason}: would be accepted"
        for reason in spec.recovery.accept
    ]


def plan_text(plan: Mapping[str, Any]) -> str:
    """The plan for people."""
    since = plan["sinceLastRun"]
    commit = plan["commit"]
    blocks = [
        fields(
            [
                ("job", f"{plan['job']}, revision {plan['revision']}, {plan['mode']}"),
                ("source", plan["source"]),
                ("transform", "\n".join(plan["transform"]) or "none"),
                ("trigger", plan["trigger"]),
                ("checkpoint", plan["checkpointLocation"]),
                ("commits", f"at most {commit['maxPending']} checkpoints pending, {commit['timeout']} an attempt"),
                ("run", f"{since['run']} (epoch {since['epoch']})"),
                ("changed", ", ".join(since.get("changed", []))),
                ("new sinks", ", ".join(since.get("newSinks", []))),
                ("removed", ", ".join(since.get("removedSinks", []))),
                ("pending", "\n".join(since.get("pending", []))),
                ("recovery", "\n".join(plan["recovery"])),
            ]
        )
    ]
    blocks += [_sink_text(sink) for sink in plan["sinks"]]
    return "\n\n".join(blocks)


def _sink_text(sink: Mapping[str, Any]) -> str:
    lines = fields(
        [
            ("guarantee", f"{sink['guarantee']} (asked: {sink['asked']})\n{sink['why']}"),
            ("refused", sink.get("refused", "")),
            ("columns", ", ".join(sink.get("columns", []))),
            ("where", sink.get("where", "")),
            ("committed by", sink["committed"]),
            ("visible", sink["visible"]),
            ("evidence", sink["evidence"]),
            ("staged rows live", sink.get("stagedLife", "")),
            ("target", sink["target"]),
        ],
        indent="  ",
    )
    return f"sink {sink['name']} ({sink['type']})\n{lines}"
