"""`sinkjob sinks`: the types of sinks there are, and the options of one, read from the sinks themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import Enum
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import click
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from sinkruntime.api import Sink
from sinkruntime.cli.output import output_option, show, table
from sinkruntime.errors import ConfigurationError, ManifestError
from sinkruntime.spec.quantities import Duration, Size
from sinkruntime.spec.sink_options import load_sink_class, sink_types

_NAMES: dict[Any, str] = {
    str: "text", int: "integer", float: "number", bool: "true or false", Any: "anything",
    Duration: "duration", Size: "size", SecretStr: "secret text",
}  # fmt: skip

#: Sinks that serve the tests of this project only.
_FOR_TESTS = frozenset({"memory"})


@click.command(short_help="List the types of sinks, or the options of one.")
@click.argument("type_name", metavar="[TYPE]", required=False)
@output_option
def sinks(type_name: str | None, output: str) -> None:
    """List the types of sinks there are; with TYPE, the options of one.

    TYPE is what a manifest has as `type`: one of the list, or package.module:Class for a sink of your own.
    """
    if type_name is None:
        entries = [_summary(name) for name in sink_types() if name not in _FOR_TESTS]
        rows = [(entry["type"], entry["guarantee"], entry["summary"]) for entry in entries]
        show(output, entries, table(("TYPE", "GUARANTEE", "WHAT IT WRITES TO"), rows))
        return
    found = _load(type_name)
    value = {"type": type_name, **_facts(found), "options": list(_options(found.Options))}
    heading = f"{type_name}: {value['summary']}\nguarantee: {value['guarantee']}"
    show(output, value, f"{heading}\n\n{_options_text(value['options'])}")


def _load(name: str) -> type[Sink]:
    try:
        return load_sink_class(name, ("type",))
    except ManifestError as error:
        problem = error.problems[0]
        raise ConfigurationError("UnknownSink", problem.message, advice=problem.expected) from error


def _summary(name: str) -> dict[str, Any]:
    """A line of the list; a sink whose client library is missing is listed with what to install."""
    try:
        return {"type": name, **_facts(load_sink_class(name, ("type",)))}
    except ManifestError as error:
        problem = error.problems[0]
        return {"type": name, "guarantee": "?", "summary": f"{problem.message}; {problem.expected}"}


def _facts(found: type[Sink]) -> dict[str, Any]:
    return {"guarantee": _strongest(found), "summary": found.summary}


def _strongest(found: type[Sink]) -> str:
    """What it gives with its required options and nothing else; their values do not matter for that."""
    required = {name: "x" for name, field in found.Options.model_fields.items() if field.is_required()}
    try:
        options = found.Options(**required)
    except ValidationError:
        return "depends on its options"
    return found.guarantee(options, {}).guarantee.value


def _options(model: type[BaseModel], prefix: str = "") -> Iterator[dict[str, Any]]:
    """Every option, those within options with a dot: `storage.region`."""
    for name, field in model.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        inner = _model(field.annotation)
        if inner is not None:
            yield from _options(inner, f"{key}.")
            continue
        yield {
            "name": key,
            "type": _type(field.annotation),
            "required": field.is_required(),
            "default": _default(field),
            "description": inspect.cleandoc(field.description or ""),
        }


def _model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, UnionType):
        return next(filter(None, map(_model, get_args(annotation))), None)
    return None


def _type(annotation: Any) -> str:
    """The kind of value in words."""
    if annotation in _NAMES:
        return _NAMES[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(str(value) for value in arguments)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ", ".join(str(member.value) for member in annotation)
    if origin in (tuple, list):
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return "mapping"
    if origin in (Union, UnionType):
        return " or ".join(_type(part) for part in arguments if part is not type(None))
    return _type(arguments[0]) if arguments else str(getattr(annotation, "__name__", annotation))


def _default(field: FieldInfo) -> Any:
    """As the manifest would have it; None where there is none."""
    if field.is_required():
        return None
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return list(value)
    return value if value is None or isinstance(value, bool | int | float | str | dict) else str(value)


def _options_text(options: list[dict[str, Any]]) -> str:
    if not options:
        return "it has no options"
    rows = [
        (option["name"], option["type"], "required" if option["required"] else _default_text(option["default"]),
         option["description"])
        for option in options
    ]  # fmt: skip
    return table(("OPTION", "VALUE", "DEFAULT", "MEANING"), rows)


def _default_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value in (None, [], {}, "") else str(value)
