"""Turns pydantic's errors into findings: the field's path as the manifest writes it, and words for people.

Called by `load.py` for the manifest and by `sink_options.py` for a sink's options.
Never shows a value that its caller calls hidden.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sinkruntime.spec.base import SHOWN_LENGTH_MAX
from sinkruntime.spec.paths import FieldPath, Finding, suggestion

# Errors of ours (`PydanticCustomError`), whose message is already written for people.
_OURS = frozenset({"quantity_bound", "positive", "unique", "scalar", "blank", "shape"})
_SHOWING = frozenset({"shape", "unique"})  # of these, those whose message shows the value
_KINDS = {
    "bool_type": "true or false", "bool_parsing": "true or false",
    "int_type": "a whole number", "int_parsing": "a whole number", "int_from_float": "a whole number",
    "float_type": "a number", "float_parsing": "a number", "string_type": "text",
    "dict_type": "fields, as `key: value`", "model_type": "fields, as `key: value`",
    "tuple_type": "a list", "list_type": "a list", "set_type": "a list",
}  # fmt: skip
_BOUNDS = {
    "greater_than_equal": "must be at least {ge}", "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}", "less_than": "must be less than {lt}",
    "string_too_short": "must not be empty", "string_too_long": "must be at most {max_length} characters",
    "too_short": "needs at least {min_length} entry", "too_long": "takes at most {max_length} entries",
}  # fmt: skip


def findings(
    error: ValidationError,
    model: type[BaseModel],
    value: Any,
    *,
    word: str = "field",
    hidden: Callable[[FieldPath], bool] = lambda path: False,
) -> list[Finding]:
    """All that `error` says about `value`, which was read as `model`.

    `word` is what an entry of this model is called in a message: `field` or `option`. `hidden` says of which paths the
    value must not be shown.
    """
    found: list[Finding] = []
    for detail in error.errors(include_url=False):
        path = _path(detail, value)
        if detail["type"] == "too_short" and len(_at(value, path)) >= detail["ctx"]["min_length"]:
            continue  # pydantic counts only the entries that are right, and those that are wrong have their own error
        if detail["type"] == "extra_forbidden":
            finding = Finding(path, f"unknown {word}", suggestion(str(path[-1]), _fields_at(model, path[:-1])))
        else:
            finding = _finding(detail, path, hidden=hidden(path))
        if finding not in found:
            found.append(finding)
    return found


def _path(detail: ErrorDetails, value: Any) -> FieldPath:
    """Pydantic's location without its own marks (`[key]`, members of a union), which are no part of the input."""
    path: list[str | int] = []
    here = value
    loc = detail["loc"]
    for index, part in enumerate(loc):
        present = (isinstance(here, dict) and part in here) or (
            isinstance(here, list | tuple) and isinstance(part, int) and part < len(here)
        )
        if present:
            path.append(part)
            here = here[part]
        elif detail["type"] == "missing" and index == len(loc) - 1:
            path.append(part)
    return tuple(path)


def _at(value: Any, path: FieldPath) -> Any:
    for part in path:
        value = value[part]
    return value


def _finding(detail: ErrorDetails, path: FieldPath, *, hidden: bool) -> Finding:
    kind = detail["type"]
    shown = "" if hidden else _shown(detail["input"])
    if kind == "missing":
        return Finding(path, "is required")
    if kind in ("literal_error", "enum"):
        allowed = re.findall(r"'([^']*)'", detail["ctx"]["expected"])
        message = f"{shown} is not allowed" if shown else "this value is not allowed"
        return Finding(path, message, suggestion("" if hidden else str(detail["input"]), allowed))
    if kind == "quantity":
        return Finding(path, f"{detail['msg']}, got {shown or _what(detail['input'])}")
    if kind in _KINDS:
        return Finding(path, f"expected {_KINDS[kind]}, got {_what(detail['input'])}{f' {shown}' if shown else ''}")
    if kind in _BOUNDS:
        return Finding(path, _BOUNDS[kind].format(**detail["ctx"]))
    if kind in _OURS:
        return Finding(path, "this value is not allowed" if hidden and kind in _SHOWING else detail["msg"])
    if kind in ("value_error", "assertion_error"):
        return Finding(path, str(detail["ctx"]["error"]))
    return Finding(path, detail["msg"][:1].lower() + detail["msg"][1:])


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return ""
    return f"`{str(value)[:SHOWN_LENGTH_MAX]}`" if isinstance(value, str | int | float) else ""


def _what(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    names = ((str, "text"), (int, "the number"), (float, "the number"), (dict, "fields"), (list, "a list"))
    return next((name for kind, name in names if isinstance(value, kind)), "nothing")


def _fields_at(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """The names of the fields that may stand at `path` below `model`."""
    models = {model}
    for part in path:
        if isinstance(part, str):
            models = {inner for outer in models for inner in _field_models(outer, part)}
    return [field.alias or name for outer in models for name, field in outer.model_fields.items()]


def _field_models(model: type[BaseModel], alias: str) -> Iterator[type[BaseModel]]:
    for name, field in model.model_fields.items():
        if alias == (field.alias or name):
            yield from _models_in(field.annotation)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models within an annotation such as `Annotated[tuple[Model, ...], …] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
