"""The transition table of the commit protocol: data only.

`machine` fires it, the simulator counts its hits, `docs/protocol.md` is drawn from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from sinkruntime.protocol.events import Action, OutcomeKind
from sinkruntime.protocol.ledger import CheckpointState, PartState


class Fact(StrEnum):
    """What has become true of a checkpoint as a whole."""

    ALL_COMMITTED = "every part is committed"
    ABORT_BEGUN = "an abort is begun"
    PART_LANDED = "a part had landed after all"
    ALL_FENCED = "every part is fenced"
    ALL_CLEANED = "every part is cleaned"
    PAYLOADS_REMOVED = "its payload objects are removed"


C, P, K = CheckpointState, PartState, OutcomeKind

#: What an outcome does to a part. A pair that is missing is refused.
PARTS: Mapping[tuple[PartState, OutcomeKind], PartState] = {
    (P.PENDING, K.COMMITTED): P.COMMITTED,
    (P.PENDING, K.REFUSED): P.HELD,
    (P.PENDING, K.UNKNOWN): P.IN_DOUBT,
    (P.PENDING, K.PROGRESS): P.PENDING,
    (P.PENDING, K.ABSENT): P.PENDING,
    (P.PENDING, K.FENCED): P.FENCED,
    (P.IN_DOUBT, K.COMMITTED): P.COMMITTED,
    (P.IN_DOUBT, K.REFUSED): P.HELD,
    (P.IN_DOUBT, K.UNKNOWN): P.IN_DOUBT,
    (P.IN_DOUBT, K.PROGRESS): P.PENDING,
    (P.IN_DOUBT, K.ABSENT): P.PENDING,
    (P.IN_DOUBT, K.FENCED): P.FENCED,
    (P.HELD, K.COMMITTED): P.COMMITTED,
    (P.HELD, K.REFUSED): P.HELD,
    (P.HELD, K.UNKNOWN): P.IN_DOUBT,
    (P.HELD, K.PROGRESS): P.HELD,
    (P.HELD, K.ABSENT): P.HELD,
    (P.HELD, K.FENCED): P.FENCED,
    (P.FENCED, K.FENCED): P.FENCED,
    (P.FENCED, K.CLEANED): P.CLEANED,
    (P.COMMITTED, K.COMMITTED): P.COMMITTED,
    (P.COMMITTED, K.CLEANED): P.CLEANED,
    (P.GIVEN_UP, K.CLEANED): P.CLEANED,
}

#: In which state of its checkpoint an outcome of a part is taken.
TAKEN_IN: Mapping[OutcomeKind, frozenset[CheckpointState]] = {
    K.COMMITTED: frozenset({C.DECIDED, C.ABORTING, C.COMMITTED}),
    K.REFUSED: frozenset({C.DECIDED}),
    K.UNKNOWN: frozenset({C.DECIDED, C.ABORTING}),
    K.PROGRESS: frozenset({C.DECIDED, C.ABORTING}),
    K.ABSENT: frozenset({C.DECIDED}),
    K.FENCED: frozenset({C.ABORTING}),
    K.CLEANED: frozenset({C.COMMITTED, C.ABORTED}),
}

#: How a checkpoint moves: (state, what has become true) -> state; None: the record leaves the ledger.
CHECKPOINTS: Mapping[tuple[CheckpointState, Fact], CheckpointState | None] = {
    (C.DECIDED, Fact.ALL_COMMITTED): C.COMMITTED,
    (C.DECIDED, Fact.ABORT_BEGUN): C.ABORTING,
    (C.ABORTING, Fact.PART_LANDED): C.DECIDED,
    (C.ABORTING, Fact.ALL_FENCED): C.ABORTED,
    (C.COMMITTED, Fact.ALL_CLEANED): C.SETTLED,
    (C.ABORTED, Fact.ALL_CLEANED): C.SETTLED,
    (C.SETTLED, Fact.PAYLOADS_REMOVED): None,
}

#: What is owed for a part: (state of its checkpoint, state of the part) -> action.
OWED: Mapping[tuple[CheckpointState, PartState], Action] = {
    (C.DECIDED, P.PENDING): Action.COMMIT,
    (C.DECIDED, P.IN_DOUBT): Action.PROBE,
    (C.DECIDED, P.HELD): Action.HOLD,
    (C.ABORTING, P.PENDING): Action.FENCE,
    (C.ABORTING, P.IN_DOUBT): Action.FENCE,
    (C.ABORTING, P.HELD): Action.FENCE,
    (C.COMMITTED, P.COMMITTED): Action.CLEAN,
    (C.COMMITTED, P.GIVEN_UP): Action.CLEAN,
    (C.ABORTED, P.FENCED): Action.DISCARD,
}
