"""Length-framed JSON between the operator and a worker, and the values that go through it.

Both sides use it. Plain data only, in both directions: nothing that arrives can run code. A committable travels as the
bytes that its sink's serializer made (`Packed`); the operator never looks into them.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sinkruntime.api import Answer, CommitRequest, Lineage
from sinkruntime.protocol.garbage import Garbage

HEAD = struct.Struct("!I")
#: The largest payload (`ledger.payloads.UNPACKED_BYTES_MAX`) in base64, with its lineage; nearly all are far smaller.
FRAME_BYTES_MAX = 160 * 1024 * 1024
#: Numbers that a sink gauges at once.
GAUGES_MAX = 16
#: A sink's texts, as they come from a worker.
TEXT_CHARS_MAX = 2000

Json = dict[str, Any]


class BadFrame(Exception):
    """What arrived is not what was agreed on; the other side is not used any more."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A committable in its written form."""

    version: int
    data: bytes


def pack(value: Json) -> bytes:
    """A frame. Raises `BadFrame` where it is too large."""
    body = json.dumps(value, separators=(",", ":")).encode()
    if len(body) > FRAME_BYTES_MAX:
        raise BadFrame(f"{len(body)} bytes are more than a worker can be given")
    return HEAD.pack(len(body)) + body


def length(head: bytes) -> int:
    """The length of a frame's body. Raises `BadFrame`."""
    (size,) = HEAD.unpack(head)
    if size > FRAME_BYTES_MAX:
        raise BadFrame(f"a frame of {size} bytes")
    return int(size)


def unpack(body: bytes) -> Json:
    """The value in a frame. Raises `BadFrame`."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadFrame("a frame that is not JSON") from error
    if not isinstance(value, dict):
        raise BadFrame("a frame that is not an object")
    return value


def packed_to(packed: Packed) -> list[Any]:
    """As it travels."""
    return [packed.version, base64.b64encode(packed.data).decode("ascii")]


def packed_from(value: Any) -> Packed:
    """Raises `BadFrame`."""
    try:
        version, data = value
        return Packed(int(version), base64.b64decode(data, validate=True))
    except (TypeError, ValueError) as error:
        raise BadFrame("a committable that is not one") from error


def lineage_to(at: Lineage) -> list[int]:
    """As it travels."""
    return [at.checkpoint, at.epoch, at.subtask, at.subtasks, at.attempt]


def lineage_from(value: Any) -> Lineage:
    """Raises `BadFrame`."""
    if not isinstance(value, list) or len(value) != 5 or not all(isinstance(number, int) for number in value):
        raise BadFrame("a lineage that is not one")
    return Lineage(*value)


def pairs_to(pairs: Sequence[tuple[Lineage, Packed]]) -> list[Any]:
    """Committables with their lineage, as they travel."""
    return [[lineage_to(at), packed_to(packed)] for at, packed in pairs]


def pairs_from(value: Any) -> list[tuple[Lineage, Packed]]:
    """Raises `BadFrame`."""
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        raise BadFrame("committables that are none")
    return [(lineage_from(at), packed_from(packed)) for at, packed in value]


def gauges_from(value: Any) -> dict[str, float] | None:
    """What a committer gauged when it cleaned up; None: nothing. Raises `BadFrame`."""
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > GAUGES_MAX:
        raise BadFrame("gauges that are none")
    if not all(isinstance(amount, int | float) and math.isfinite(amount) for amount in value.values()):
        raise BadFrame("gauges that are no numbers")
    return {str(name): float(amount) for name, amount in value.items()}


def request_to(request: CommitRequest) -> Json:
    """A request whose committable is `Packed`, as it travels."""
    return {
        "committable": packed_to(request.committable),
        "lineage": lineage_to(request.lineage),
        "previous": request.previous,
        "retries": request.retries,
        "may_have_landed": request.may_have_landed,
        "order": list(request.order),
    }


def request_from(value: Json) -> CommitRequest:
    """The request, its committable `Packed`."""
    token, count = value["order"]
    return CommitRequest(
        packed_from(value["committable"]),
        lineage_from(value["lineage"]),
        value["previous"],
        value["retries"],
        value["may_have_landed"],
        (token, count),
    )


def take_answers(requests: Sequence[CommitRequest], value: Any) -> None:
    """Write a worker's answers into the requests. Raises `BadFrame`, with none written that is not an answer."""
    if not isinstance(value, list) or len(value) != len(requests):
        raise BadFrame("answers that do not fit the requests")
    for request, found in zip(requests, value, strict=True):
        try:
            answer = None if found["answer"] is None else Answer(found["answer"])
            updated = None if found["committable"] is None else packed_from(found["committable"])
            reason, message = _text(found["reason"]), _text(found["message"])
            evidence = bool(found["evidence"])
        except (KeyError, TypeError, ValueError) as error:
            raise BadFrame("an answer that is none") from error
        request.answer, request.reason, request.message, request.evidence = answer, reason, message, evidence
        if updated is not None:
            request.committable = updated


def _text(value: Any) -> str:
    return str(value)[:TEXT_CHARS_MAX]


def garbage_to(garbage: Garbage) -> Json:
    """As it travels."""
    return {
        "ledger_id": garbage.ledger_id,
        "epoch": garbage.epoch,
        "firsts": list(garbage.firsts),
        "unsettled": sorted(garbage.unsettled),
    }


def garbage_from(value: Json) -> Garbage:
    """The same on the other side."""
    return Garbage(value["ledger_id"], value["epoch"], tuple(value["firsts"]), frozenset(value["unsettled"]))
