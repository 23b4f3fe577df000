"""What must hold, judged from outside on every step: the simulator's own model of the job.

The store tells it of each accepted version, the targets of each publication and removal, Spark of each acknowledged
batch. It shares no rule with `sinkruntime.protocol`: it only reads ledgers as values. The first violation ends the run.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from sinkruntime.driver.staging import Assignment
from sinkruntime.ledger.payloads import load_payload
from sinkruntime.protocol.ledger import Authority, CheckpointState, Ledger, Part, PartState, Payload, Position, Record
from sinkruntime.sinks.memory.target import StagedKey
from tests.simulation.ledger import at_once
from tests.simulation.oracle_targets import Fate, TargetOracle

if TYPE_CHECKING:
    from tests.simulation.world import World

FINAL = (PartState.COMMITTED, PartState.CLEANED, PartState.GIVEN_UP)


def _same(mine: Position, other: Position) -> bool:
    """Whether both are the same batch of the same query, with the same rows."""
    return (mine.query_id, mine.batch_id, mine.start.digest, mine.end.digest) == (
        other.query_id, other.batch_id, other.start.digest, other.end.digest,
    )  # fmt: skip


class Oracle(TargetOracle):
    """See the module."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._states: dict[str, list[bytes]] = {}
        self._claims: dict[int, str] = {}
        self._holders: dict[int, str] = {}
        self._rows_end: Position | None = None
        self.dropped: set[str | None] = set()  # payload objects that only the next epoch's recovery will find

    # The ledger.

    def accepted(self, before: Ledger | None, after: Ledger, actor: str) -> None:
        """A version was accepted."""
        if before is None:
            return
        self._world.note_change(before, after, actor)
        self._only_grows(before, after)
        if after.epoch != before.epoch or after.claim != before.claim:
            self._check_claim(before, after, actor)
        if after.token != before.token:
            self._holders[after.token] = actor
            self.demand(after.token == before.token + 1, "I5", f"token {after.token} after {before.token}")
        if after.recovered != before.recovered or after.closed != before.closed:
            self._check_recovered(before, after, actor)
        rebased = len(after.acceptances) > len(before.acceptances)
        if rebased and after.acceptances[-1].reason in ("TargetBehindLedger", "TargetReplaced"):
            self._excuse_holes()
        if rebased and after.last is None:
            self._rows_end = None
            self.dropped |= {p.pointer for p in before.last.states.values()} if before.last else set()
        if after.records is not before.records:
            self._check_records(before, after, actor)

    def _only_grows(self, before: Ledger, after: Ledger) -> None:
        grows = after.epoch >= before.epoch and after.token >= before.token and after.decided >= before.decided
        self.demand(grows, "I5", "epoch, token or number went back")
        closed = max(len(before.firsts) - 1, 0)
        self.demand(after.firsts[:closed] == before.firsts[:closed], "I5", "a closed epoch's range changed")
        self.demand(len(after.firsts) == after.epoch, "I5", f"{len(after.firsts)} ranges in epoch {after.epoch}")
        if after.sinks is not before.sinks:
            for name, entry in before.sinks.items():
                self.demand(after.sinks[name].committed >= entry.committed, "I5", f"committed of {name} went back")
                accepted = len(after.acceptances) > len(before.acceptances)
                grew = after.sinks[name].evidence >= entry.evidence or accepted
                self.demand(grew, "I5", f"evidence of {name} went back")

    def _check_claim(self, before: Ledger, after: Ledger, actor: str) -> None:
        if after.epoch != before.epoch:
            self.demand(after.claim == "", "I4", "a new epoch is claimed already")
            return
        first = self._claims.setdefault(after.epoch, actor)
        self.demand(first == actor and before.claim == "", "I4", f"{actor} claims an epoch of {first}")

    def _check_recovered(self, before: Ledger, after: Ledger, actor: str) -> None:
        for authority in Authority:
            was, now = before.recovered.get(authority, 0), after.recovered.get(authority, 0)
            changed = now != was or before.closed.get(authority, 0) != after.closed.get(authority, 0)
            if changed:
                self._may_speak(before, authority, actor, "recovery")
            closed = after.closed.get(authority, 0)
            if closed > before.closed.get(authority, 0):
                alive = [p.name for p in self._world.running_processes() if p.epoch < closed]
                self.demand(not alive, "I7", f"recovery of epoch {closed} is closed while {alive} still run")

    def _may_speak(self, ledger: Ledger, authority: Authority, actor: str, what: str) -> None:
        speaker = self._holders.get(ledger.token) if authority is Authority.TOKEN else self._claims.get(ledger.epoch)
        self.demand(speaker == actor, "I4", f"{actor} reports {what} under the {authority} of {speaker}")

    def _check_records(self, before: Ledger, after: Ledger, actor: str) -> None:
        present = {record.number: record for record in after.records}
        for record in before.records:
            now = present.pop(record.number, None)
            if now is None:
                self._gone(record)
            elif now is not record:
                self._changed(before, record, now, actor)
        for record in present.values():
            self._decided(before, after, record, actor)

    def _decided(self, before: Ledger, after: Ledger, record: Record, actor: str) -> None:
        name = f"checkpoint {record.number}"
        self.demand(record.number == before.decided + 1 == after.decided, "I5", f"{name} after {before.decided}")
        self.demand(record.number not in self.fates, "I1", f"{name} is decided twice")
        fresh = record.epoch == before.epoch and actor == self._claims.get(before.epoch)
        self.demand(fresh, "I4", f"{name} of epoch {record.epoch} by {actor}, in epoch {before.epoch}")
        pending = [r for r in before.records if r.pending]
        self.demand(len(pending) < self._world.shape.max_pending, "maxPending", f"{name} beside {len(pending)}")
        older = [r.number for r in pending if r.epoch < record.epoch]
        self.demand(not older, "start", f"{name} is decided while {older} of older epochs are pending")
        self.demand(not any(r.state is CheckpointState.ABORTING for r in pending), "abort", f"{name} during an abort")
        self.demand(not any(not a.accepted for a in before.aborts), "abort", f"{name} after an abort nobody accepted")
        for sink in record.parts:
            ran = self._recovered[sink] >= record.epoch
            self.demand(ran, "start", f"{name} is decided before recovery of {sink} in epoch {record.epoch}")
            self.demand(sink in self._world.sinks, "I1", f"{name} has an unknown sink {sink}")
        self._follows(record)
        keys = {sink: self._keys(part) for sink, part in record.parts.items()}
        self.fates[record.number] = Fate(record.number, record.record_id, record.epoch, record.position, keys)
        for sink in self._world.sinks:
            self._whole(record, sink, keys.get(sink, frozenset()))
        states = after.last.states if after.last else {}
        self._states = {sink: self._bytes(payload) for sink, payload in states.items()}

    def _follows(self, record: Record) -> None:
        """No row is left out and none is decided twice, but where a person said so."""
        end, mine = self._rows_end, record.position
        if end is not None:
            follows = mine.start.digest == end.end.digest and mine.query_id == end.query_id
            self.demand(follows, "I3", f"checkpoint {record.number} does not start where the last decision ended")
            later = mine.batch_id > end.batch_id
            self.demand(later, "I1", f"checkpoint {record.number} decides batch {mine.batch_id} a second time")
        self._rows_end = mine

    def _whole(self, record: Record, sink: str, keys: frozenset[StagedKey]) -> None:
        """What the committables name is there, and it is exactly the batch's rows."""
        target = self._world.targets[sink]
        missing = [key for key in keys if key not in target.staged]
        excused = [key for key in missing if key in self._world.vanished]
        self.demand(len(missing) == len(excused), "I7", f"decided, but removed before: {missing[:1]} of {sink}")
        if missing:
            return
        unprepared = [key for key in keys if not target.staged[key].prepared]
        self.demand(not unprepared, "I1", f"decided, but not prepared: {unprepared}")
        found = sorted(int(row["row"]) for key in keys for row in target.staged[key].rows)
        wanted = self._world.rows_of(record.position)
        message = f"checkpoint {record.number} of {sink} holds rows {found}, its batch has {wanted}"
        self.demand(found == wanted, "I1", message)
        needed = 2 * self._world.shape.commit_timeout_seconds
        for key in keys:
            expires = target.staged[key].expires_at_seconds
            told = self._world.lives.get(key)
            enough = expires is None or told is None or told >= needed
            self.demand(enough, "life", f"checkpoint {record.number} of {sink} is decided with too little life left")

    def _keys(self, part: Part) -> frozenset[StagedKey]:
        items = at_once(load_payload(self._world.store, part.payload)) if self._readable(part.payload) else []
        return frozenset(StagedKey(**json.loads(written.data)["key"]) for _, written in items)

    def _bytes(self, payload: Payload) -> list[bytes]:
        return [w.data for _, w in at_once(load_payload(self._world.store, payload))] if self._readable(payload) else []

    def _readable(self, payload: Payload | None) -> bool:
        there = payload is None or payload.pointer is None or payload.pointer in self._world.store.objects
        self.demand(there, "I7", f"payload {payload and payload.pointer} is decided and missing")
        return there

    def _changed(self, before: Ledger, was: Record, now: Record, actor: str) -> None:
        same = (was.record_id, was.position, was.epoch, set(was.parts)) == (
            now.record_id, now.position, now.epoch, set(now.parts),
        )  # fmt: skip
        self.demand(same, "I3", f"the record of checkpoint {was.number} became another one")
        fate = self.fates[was.number]
        self._check_state(before, was, now, fate)
        for sink, part in now.parts.items():
            old = was.parts[sink]
            if old is not part and old.state is not part.state:
                self._check_part(before, now, sink, old, part, actor)

    def _check_state(self, before: Ledger, was: Record, now: Record, fate: Fate) -> None:
        if was.state is now.state:
            return
        if now.state is CheckpointState.ABORTING:
            landed = [sink for sink, part in was.parts.items() if part.state in FINAL]
            self.demand(not landed, "abort", f"checkpoint {now.number} is aborted though committed in {landed}")
            newer = [r.number for r in before.records if r.number > now.number and r.state is CheckpointState.DECIDED]
            fate.begun = True
            self._suffix(before, now.number, newer)
        if now.state is CheckpointState.DECIDED:
            fate.begun = False
        if now.state is CheckpointState.ABORTED:
            fate.aborted = True
            visible = [sink for sink in fate.keys if fate.keys[sink] & self._published[sink]]
            self.demand(not visible, "I3", f"checkpoint {now.number} is aborted though visible in {visible}")
            self.demand(bool(now.who), "abort", f"nobody is on record for the abort of {now.number}")
            newer = [r.number for r in before.records if r.number > now.number and r.pending]
            self.demand(not newer, "abort", f"checkpoint {now.number} is aborted before {newer}")

    def _suffix(self, before: Ledger, number: int, newer: list[int]) -> None:
        after = self._world.store.ledger
        assert after is not None
        left = [n for n in newer if (r := after.record(n)) is not None and r.state is CheckpointState.DECIDED]
        self.demand(not left, "abort", f"checkpoint {number} is aborted, and not the later {left}")

    def _check_part(self, before: Ledger, now: Record, sink: str, old: Part, part: Part, actor: str) -> None:
        fate = self.fates[now.number]
        after = self._world.store.ledger
        assert after is not None
        if part.state is PartState.GIVEN_UP:
            spoken = [a.reason for a in after.acceptances[len(before.acceptances) :]]
            self.demand("CommittableLost" in spoken, "I3", f"{sink} of {now.number} is given up, and nobody said so")
            fate.excused.add(sink)
            return
        if part.state is PartState.CLEANED and not fate.aborted:
            cleaned = now.number in self._cleaned[sink]
            self.demand(cleaned, "I7", f"{sink} of {now.number} is called cleaned, and nothing was")
        tenure_begins = (after.token, after.epoch) != (before.token, before.epoch)
        accepted = len(after.acceptances) > len(before.acceptances)
        lifted = old.state is PartState.FENCED  # by whoever found another part landed
        if not ((tenure_begins or accepted or lifted) and part.state is PartState.IN_DOUBT):
            self._may_speak(before, part.authority, actor, f"{sink} of {now.number} {part.state}")
        if part.state is PartState.COMMITTED and old.state not in FINAL:
            self._must_be_visible(fate, sink)

    def _must_be_visible(self, fate: Fate, sink: str) -> None:
        if sink in fate.excused or fate.number in self._holes[sink]:
            return
        missing = fate.keys[sink] - self._published[sink]
        self.demand(
            not missing, "I3", f"checkpoint {fate.number} of {sink} is called committed, not visible: {missing}"
        )

    def _gone(self, record: Record) -> None:
        fate = self.fates[record.number]
        if fate.aborted:
            return
        for sink in record.parts:
            self._must_be_visible(fate, sink)
            self.demand(record.number in self._cleaned[sink], "I7", f"{record.number} leaves, {sink} was never cleaned")

    # The payload objects.

    def object_removed(self, name: str) -> None:
        """A payload object was removed."""
        ledger = self._world.store.ledger
        if ledger is None:
            return
        named = {p.payload.pointer for r in ledger.records if r.state is not CheckpointState.SETTLED
                 for p in r.parts.values() if p.payload}  # fmt: skip
        named |= {payload.pointer for payload in ledger.last.states.values()} if ledger.last else set()
        self.demand(name not in named, "I7", f"payload {name} is removed while the ledger needs it")

    # The driver.

    def started(self, began: float) -> None:
        """A driver passed its start check; what was wrong before it began should have stopped it."""
        world, ledger = self._world, self._world.store.ledger
        assert ledger is not None
        calm = {what: at < began for what, at in world.disturbed.items()}
        for sink, entry in ledger.sinks.items():
            target = world.targets[sink]
            if calm.get("identity", True):
                same = entry.target in ("", target.identity)
                self.demand(same, "start", f"a driver starts though {sink} is not {entry.target} any more")
            if calm.get("evidence", True):
                found = target.evidence.get((world.ledger_id, sink), 0)
                self.demand(found >= entry.evidence, "start", f"a driver starts though {sink} is behind the ledger")
                self.demand(found <= ledger.decided, "start", f"a driver starts though {sink} is ahead of the ledger")
        if calm.get("location", True) and ledger.last is not None:
            last, batches = ledger.last.position, world.spark.location.planned
            there = world.spark.location.query_id == last.query_id and max(batches, default=-1) >= last.batch_id
            self.demand(there, "start", "a driver starts though its checkpoint location lacks the last decision")

    def assigned(self, assignment: Assignment) -> None:
        """A staging pass begins; its writers get the states that the last decision left."""
        world, present = self._world, self._world.store.ledger
        if present is not None and present.epoch == assignment.epoch:
            room = sum(record.pending for record in present.records) < world.shape.max_pending
            self.demand(room or world.shape.careless, "maxPending", "a batch is staged while no slot is free")
        found = {sink: [written.data for written in states] for sink, states in assignment.states.items()}
        ledger = self._world.store.ledger
        assert ledger is not None
        if assignment.epoch == ledger.epoch:
            self.demand(found == self._states or ledger.last is None, "I1", "writer states are not the last decision's")

    def acknowledged(self, position: Position) -> None:
        """Spark marks a batch as finished."""
        known = any(_same(fate.position, position) for fate in self.fates.values())
        self.demand(known, "I3", f"batch {position.batch_id} is acknowledged and was never decided")
