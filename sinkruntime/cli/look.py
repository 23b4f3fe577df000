"""`sinkjob status`, `commits` and `explain`: how a job stands, by its ledger and by its targets. Read-only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from sinkruntime.cli.checkpoints import STATES, advice_for, checkpoint_of
from sinkruntime.cli.jobs import job_argument, namespace_option, opened
from sinkruntime.cli.output import fields, output_option, short, show, table, time_text, without_empty
from sinkruntime.errors import ConfigurationError
from sinkruntime.local.inspection import (
    Said,
    ask_targets,
    committed_up_to,
    epoch_of,
    known_sinks,
    phase,
    read_ledger,
    running_process,
)
from sinkruntime.local.workspace import Workspace
from sinkruntime.protocol.ledger import Ledger, PartState

NEVER_RUN = "never run: there is no ledger in {root}"


@click.command(short_help="Say how a job stands, by its ledger.")
@job_argument
@namespace_option
@output_option
def status(job: str, namespace: str | None, output: str) -> None:
    """Say how a job stands: whether it runs, what is committed, what is pending, and why something is held.

    Reads the job's ledger and asks no target: `sinkjob commits` does.
    """
    with opened(job, namespace) as workspace:
        value = _status(workspace, read_ledger(workspace), running_process(workspace))
        show(output, value, _status_text(value, workspace))


def _status(workspace: Workspace, ledger: Ledger | None, running: int | None) -> dict[str, Any]:
    value: dict[str, Any] = {"job": workspace.name, "phase": str(phase(ledger, running))}
    if running is not None:
        value["process"] = running
    if ledger is None:
        return value
    parts = [(r, name, part) for r in ledger.pending for name, part in r.parts.items()]
    times = [entry.decided_ms for entry in ledger.history] + [record.decided_ms for record in ledger.records]
    commit = {
        "decided": ledger.decided,
        "lastCheckpoint": committed_up_to(ledger),
        "pending": len(ledger.pending),
        "inDoubt": sum(part.state is PartState.IN_DOUBT for _, _, part in parts),
        "held": sum(part.state is PartState.HELD for _, _, part in parts),
        "lastDecisionTime": time_text(max(times, default=0)),
        "sinks": {name: {"committed": entry.committed} for name, entry in sorted(ledger.sinks.items())},
    }
    problems = [
        {"checkpoint": r.number, "sink": name, "state": str(part.state).replace("_", " "), "reason": part.reason,
         "message": part.message, "advice": advice_for(part.reason)}
        for r, name, part in parts
        if part.state is PartState.HELD or (part.state is PartState.IN_DOUBT and part.reason)
    ]  # fmt: skip
    aborts = [
        {"first": a.first, "last": a.last, "who": a.who, "why": a.why, "accepted": a.accepted} for a in ledger.aborts
    ]
    more = {"ledger": ledger.ledger_id, "epoch": ledger.epoch, "commit": without_empty(commit)}
    return without_empty({**value, **more, "problems": problems, "aborts": aborts})


def _status_text(value: Mapping[str, Any], workspace: Workspace) -> str:
    if "commit" not in value:
        state = f"running (process {value['process']})" if "process" in value else NEVER_RUN
        return fields([("job", value["job"]), ("phase", state.format(root=workspace.root))])
    commit = value["commit"]
    process = f" (process {value['process']})" if "process" in value else ""
    counts = f"{commit['pending']} pending, {commit['inDoubt']} in doubt, {commit['held']} held"
    text = fields(
        [
            ("job", value["job"]),
            ("phase", f"{value['phase']}{process}"),
            ("ledger", value["ledger"]),
            ("epoch", value["epoch"]),
            (
                "decided",
                f"{commit['decided']} checkpoints, the last at {commit.get('lastDecisionTime', 'no known time')}",
            ),
            ("committed", f"up to checkpoint {commit['lastCheckpoint']}"),
            ("open", counts),
        ]
    )
    if commit["sinks"]:
        rows = [(name, entry["committed"]) for name, entry in commit["sinks"].items()]
        text += "\n\n" + table(("SINK", "COMMITTED"), rows)
    for problem in value.get("problems", []):
        why = ": ".join(filter(None, [problem["reason"], problem["message"]]))
        text += f"\n\ncheckpoint {problem['checkpoint']} of sink {problem['sink']} is {problem['state']}: {why}"
        text += f"\n  {problem['advice']}"
    for abort in value.get("aborts", []):
        end = "accepted" if abort["accepted"] else "the job does not start until recovery.accept has Aborted"
        text += (
            f"\n\ncheckpoints {abort['first']} to {abort['last']} were aborted by {abort['who']}: {abort['why']}; {end}"
        )
    return text


@click.command(short_help="List checkpoints, with proofs read from the targets.")
@job_argument
@namespace_option
@click.option(
    "--last", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many checkpoints to list."
)
@output_option
def commits(job: str, namespace: str | None, last: int, output: str) -> None:
    """List checkpoints with what the targets prove of them at this moment.

    States, source offsets and rows come from the job's ledger, which remembers the pending checkpoints and the last 20
    others. Whether a checkpoint has arrived is asked from each target now, and never taken from the ledger.
    """
    with opened(job, namespace) as workspace:
        ledger = _ledger(workspace)
        numbers = range(max(1, ledger.decided - last + 1), ledger.decided + 1)
        said = _ask(workspace, ledger, list(numbers))
        targets = {name: _target(answer) for name, answer in said.items()}
        value = {
            "job": workspace.name,
            "ledger": ledger.ledger_id,
            "targets": targets,
            "checkpoints": [checkpoint_of(ledger, number, said) for number in numbers],
        }
        show(output, value, _commits_text(value))


def _target(answer: Said) -> dict[str, Any]:
    if answer.error:
        return {"error": answer.error}
    if answer.evidence is None:
        return {"evidence": "none: this target keeps no proof"}
    return without_empty(
        {
            "evidence": answer.evidence.checkpoint,
            "identity": answer.evidence.target,
            "detail": answer.evidence.detail,
        }
    )


def _commits_text(value: Mapping[str, Any]) -> str:
    sinks = list(value["targets"])
    targets = [_target_line(name, value["targets"][name]) for name in sinks]
    if not value["checkpoints"]:
        return "\n".join([f"{value['job']} has decided no checkpoint yet", "", *targets])
    rows = [
        (
            entry["checkpoint"],
            entry["state"],
            entry["epoch"],
            entry.get("batch", "?"),
            _offsets(entry),
            _rows(entry.get("rows", {})),
            *(entry["evidence"].get(name, {}).get("proved", "-") for name in sinks),
        )
        for entry in value["checkpoints"]
    ]
    headers = ("CHECKPOINT", "STATE", "EPOCH", "BATCH", "OFFSETS", "ROWS", *(f"PROVED IN {name}" for name in sinks))
    return "\n".join([table(headers, rows), "", *targets])


def _offsets(entry: Mapping[str, Any]) -> str:
    if "end" not in entry:
        return "?"
    return f"{short(entry.get('start', '')) or 'the beginning'} → {short(entry['end'])}"


def _rows(rows: Mapping[str, int]) -> str:
    if not rows:
        return "?"
    counts = set(rows.values())
    if len(counts) == 1:
        return f"{counts.pop():,}"
    return ", ".join(f"{name} {count:,}" for name, count in rows.items())


def _target_line(name: str, target: Mapping[str, Any]) -> str:
    if "error" in target:
        return f"{name}: not reached, so nothing is known: {target['error']}"
    if not isinstance(target["evidence"], int):
        return f"{name}: {target['evidence']}"
    has = f"evidence of checkpoint {target['evidence']}" if target["evidence"] else "no evidence of this job"
    detail = f" ({target['detail']})" if "detail" in target else ""
    return f"{name}: the target holds {has}{detail}"


@click.command(short_help="Tell all that is known of one checkpoint.")
@job_argument
@namespace_option
@click.option("--checkpoint", "number", type=click.IntRange(min=1), required=True, help="The checkpoint's number.")
@output_option
def explain(job: str, namespace: str | None, number: int, output: str) -> None:
    """Tell everything that is known of one checkpoint, what its state means, and what happens next."""
    with opened(job, namespace) as workspace:
        ledger = _ledger(workspace)
        if number > ledger.decided:
            message = f"checkpoint {number} of {workspace.name} is not decided; the last one is {ledger.decided}"
            raise ConfigurationError(
                "UnknownCheckpoint", message, advice="before its decision a checkpoint never happened"
            )
        value = checkpoint_of(ledger, number, _ask(workspace, ledger, [number]))
        means, then = STATES[value["state"]]
        value = {"job": workspace.name, **value, "means": means, "next": then}
        show(output, value, _explain_text(value, ledger))


def _explain_text(value: Mapping[str, Any], ledger: Ledger) -> str:
    record = ledger.record(value["checkpoint"])
    known = "" if "batch" in value else "the ledger remembers only the last checkpoints; this one is settled for longer"
    blocks = [
        fields(
            [
                ("checkpoint", f"{value['checkpoint']} of {value['job']}"),
                ("state", value["state"]),
                ("means", value["means"]),
                ("next", value["next"]),
                ("aborted by", value.get("abortedBy", "")),
                ("epoch", value["epoch"]),
                ("revision", value.get("revision", "")),
                ("decided", value.get("decided", "")),
                ("record", record.record_id if record else ""),
                ("batch", value.get("batch", "")),
                ("from", value.get("start") or ("the beginning" if value.get("batch") == 0 else "")),
                ("to", value.get("end", "")),
                ("note", known),
            ]
        )
    ]
    for name, proof in value["evidence"].items():
        part = value.get("parts", {}).get(name, {})
        rows = value.get("rows", {}).get(name)
        lines = fields(
            [
                ("ledger says", part.get("state", "")),
                ("rows", "" if rows is None else f"{rows:,}"),
                ("attempts", part.get("attempts", "")),
                ("reason", ": ".join(filter(None, [part.get("reason"), part.get("message")]))),
                ("advice", part.get("advice", "")),
                ("target says", proof["text"]),
            ],
            indent="  ",
        )
        blocks.append(f"sink {name}\n{lines}")
    return "\n\n".join(blocks)


def _ledger(workspace: Workspace) -> Ledger:
    ledger = read_ledger(workspace)
    if ledger is None:
        message = f"{workspace.name} has {NEVER_RUN.format(root=workspace.root)}"
        raise ConfigurationError("NeverRun", message, advice="`sinkjob run` makes one")
    return ledger


def _ask(workspace: Workspace, ledger: Ledger, numbers: list[int]) -> dict[str, Said]:
    return ask_targets(workspace, known_sinks(workspace, ledger), {n: epoch_of(ledger, n) for n in numbers})
