"""What is known of single checkpoints, from the ledger and from the targets, as plain values. Used by `look`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sinkruntime.cli.output import time_text, without_empty
from sinkruntime.local.inspection import Said, epoch_of
from sinkruntime.protocol.ledger import CheckpointState, Ledger, Part, PartState, Record, Settled
from sinkruntime.protocol.start import ADVICE

#: What the state of a checkpoint means, and what happens next.
STATES: Mapping[str, tuple[str, str]] = {
    "pending": (
        "decided: its record is durable, so it will become visible in every sink",
        "the next run commits it before anything else, if the present one does not",
    ),
    "in doubt": (
        "decided; whether an attempt to commit it has landed is not known",
        "the target is asked first, and it is committed only where it is not there",
    ),
    "held": (
        "decided; a target turned its commit down, and nothing later is committed there",
        "nothing is dropped; the next run asks the target and tries again",
    ),
    "committed": ("visible in every sink", "nothing: at most leftovers of failed attempts are still removed"),
    "aborting": (
        "a person asked to give it up; its targets are being told to refuse a late commit",
        "when all of them have, its staged rows are removed; if a commit had landed, it is committed after all",
    ),
    "aborted": (
        "given up for good: it will never be visible",
        "its rows must be run again from the source by hand if they are needed",
    ),
}

_HELD_ADVICE = {
    "CommittableLost": "what was staged is gone from the target: bring it back, or give these rows up with "
    "recovery.accept: [CommittableLost] and a new recovery.nonce",
    "InDoubt": "look into the target; if the rows are there, say so with recovery.accept: [InDoubt] and a new "
    "recovery.nonce",
}
_OTHER_ADVICE = (
    "remove the cause and run the job again; or give the pending checkpoints up with recovery.accept: "
    "[AbandonPending] and a new recovery.nonce"
)


def advice_for(reason: str) -> str:
    """What a person can do about a part that is held or in doubt."""
    return _HELD_ADVICE.get(reason) or {str(key): text for key, text in ADVICE.items()}.get(reason) or _OTHER_ADVICE


def state_of(record: Record) -> str:
    """One word for a checkpoint: the worst of its parts while it is pending."""
    if record.state is CheckpointState.DECIDED:
        states = {part.state for part in record.parts.values()}
        if PartState.HELD in states:
            return "held"
        return "in doubt" if PartState.IN_DOUBT in states else "pending"
    if record.state in (CheckpointState.ABORTING, CheckpointState.ABORTED):
        return str(record.state)
    return "aborted" if record.who else "committed"


def checkpoint_of(ledger: Ledger, number: int, said: Mapping[str, Said]) -> dict[str, Any]:
    """One checkpoint: what the ledger still knows of it, and what each target proves."""
    record = ledger.record(number)
    kept = next((entry for entry in ledger.history if entry.number == number), None)
    known = _of_record(record) if record else _of_settled(kept) if kept else _forgotten(ledger, number)
    names = list(record.parts) if record else list(kept.rows) if kept else list(said)
    proofs = {name: _proof(said.get(name), number) for name in names}
    return without_empty({"checkpoint": number, **known}) | {"evidence": proofs}


def _of_record(record: Record) -> dict[str, Any]:
    at = record.position
    return {
        "state": state_of(record),
        "epoch": record.epoch,
        "revision": record.revision,
        "decided": time_text(record.decided_ms),
        "batch": at.batch_id,
        "start": at.start.text,
        "end": at.end.text,
        "rows": {name: part.rows for name, part in record.parts.items()},
        "parts": {name: _part(part) for name, part in record.parts.items()},
        "abortedBy": ": ".join(filter(None, [record.who, record.why])),
    }


def _part(part: Part) -> dict[str, Any]:
    open_ = part.state in (PartState.HELD, PartState.IN_DOUBT)
    return without_empty(
        {
            "state": str(part.state).replace("_", " "),
            "attempts": part.attempts,
            "reason": part.reason,
            "message": part.message,
            "advice": advice_for(part.reason) if open_ and part.reason else "",
        }
    )


def _of_settled(entry: Settled) -> dict[str, Any]:
    return {
        "state": "aborted" if entry.aborted else "committed",
        "epoch": entry.epoch,
        "revision": entry.revision,
        "decided": time_text(entry.decided_ms),
        "batch": entry.batch_id,
        "start": entry.start,
        "end": entry.end,
        "rows": dict(entry.rows),
    }


def _forgotten(ledger: Ledger, number: int) -> dict[str, Any]:
    """Of what is longer ago than the ledger remembers, only the outcome and the epoch are known."""
    aborted = any(abort.first <= number <= abort.last for abort in ledger.aborts)
    return {"state": "aborted" if aborted else "committed", "epoch": epoch_of(ledger, number)}


def _proof(said: Said | None, number: int) -> dict[str, Any]:
    """What a target proves of one checkpoint: `proved` is yes, no, unknown (not reached) or none (keeps no proof)."""
    if said is None:
        return {"proved": "unknown", "text": "this sink is no longer in the manifest"}
    if said.error:
        return {"proved": "unknown", "text": f"the target was not reached: {said.error}"}
    text = said.proofs.get(number)
    if text:
        return {"proved": "yes", "text": text}
    evidence = said.evidence
    if evidence is None:
        return {"proved": "none", "text": "this target keeps no proof of single checkpoints"}
    if evidence.checkpoint >= number:
        return {"proved": "yes", "text": f"the target holds evidence of checkpoint {evidence.checkpoint}"}
    has = f"evidence of checkpoint {evidence.checkpoint} only" if evidence.checkpoint else "no evidence of this job"
    return {"proved": "no", "text": f"the target holds {has}; an empty checkpoint may leave none"}
