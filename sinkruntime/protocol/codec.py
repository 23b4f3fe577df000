"""The ledger's written form: JSON with a format number and a checksum.

Ledger stores call it. A format newer than this release is refused, never guessed at; so is a text whose checksum is
wrong, for it was torn or edited by hand. The shape is read off the dataclasses, so a field has one definition.
A ledger of format N is readable by release N-1 as long as only fields with defaults were added (see `FORMAT`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from sinkruntime.protocol.ledger import Ledger

#: Raised whenever an older release would misread the text, never for an added field with a default.
FORMAT = 1


class BadLedger(ValueError):
    """A text that is not a ledger: torn, edited by hand, or not ours."""


class NewerFormat(BadLedger):
    """A ledger that a newer release wrote."""


def encode(ledger: Ledger) -> str:
    """The ledger as JSON text; equal ledgers give equal texts."""
    body = json.dumps(_plain(ledger), sort_keys=True, separators=(",", ":"))
    head = f'{{"format":{FORMAT},"sha256":"{_sha256(body)}","ledger":'
    return head + body + "}"


def decode(text: str) -> Ledger:
    """Read what `encode` wrote; raises `BadLedger` or `NewerFormat`."""
    try:
        outer = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadLedger(f"not JSON, so it is torn or no ledger: {error}") from error
    if not isinstance(outer, dict) or type(outer.get("format")) is not int or outer["format"] < 1:
        raise BadLedger("no format number")
    if outer["format"] > FORMAT:
        raise NewerFormat(f"format {outer['format']} is newer than {FORMAT}, the newest that this release reads")
    try:
        body = json.dumps(outer.get("ledger"), sort_keys=True, separators=(",", ":"))
        if _sha256(body) != outer.get("sha256"):
            raise BadLedger("its checksum is wrong: it was edited by hand or damaged")
        ledger: Ledger = _typed(Ledger, outer["ledger"], "ledger")
    except BadLedger:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise BadLedger(str(error)) from error
    return ledger


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    """A value as JSON has it; fields at their defaults are left out."""
    if is_dataclass(value):
        return {f.name: _plain(v) for f in fields(value) if (v := getattr(value, f.name)) != _default(f)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _default(field: Any) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _typed(kind: Any, value: Any, path: str) -> Any:
    """The inverse of `_plain` for the annotation `kind`; fields that this release does not know are dropped."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        if value is None and NoneType in arguments:
            return None
        return _typed(next(a for a in arguments if a is not NoneType), value, path)
    if origin is tuple:
        return _tuple(arguments, value, path)
    if origin is Mapping:
        key, item = arguments
        return {key(k): _typed(item, v, f"{path}.{k}") for k, v in value.items()}
    if is_dataclass(kind):
        if not isinstance(value, dict):
            raise BadLedger(f"{path} is {type(value).__name__}, expected an object")
        known = _hints(kind)  # type: ignore[arg-type]
        return kind(**{n: _typed(known[n], v, f"{path}.{n}") for n, v in value.items() if n in known})  # type: ignore[operator]
    if issubclass(kind, StrEnum):
        return kind(value)
    if type(value) is not kind:
        raise BadLedger(f"{path} is {type(value).__name__}, expected {kind.__name__}")
    return value


def _tuple(arguments: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise BadLedger(f"{path} is {type(value).__name__}, expected a list")
    if arguments[-1] is Ellipsis:
        return tuple(_typed(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if len(value) != len(arguments):
        raise BadLedger(f"{path} has {len(value)} items, expected {len(arguments)}")
    return tuple(_typed(a, item, f"{path}[{i}]") for i, (a, item) in enumerate(zip(arguments, value, strict=True)))
