"""Finds the class of a sink by its type, and reads its options as that class declares them.

Called by `bind.py` and by `sinkjob sinks`. Importing a sink's module runs its code, so this is never called where a
manifest must only be looked at. Never opens a sink.
"""

import pkgutil
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import BaseModel, ValidationError

import sinkruntime.sinks
from sinkruntime.api import Sink
from sinkruntime.errors import ManifestError, Problem
from sinkruntime.spec.options_from import Secrets
from sinkruntime.spec.paths import FieldPath, path_text, suggestion
from sinkruntime.spec.plaintext import holds_secret
from sinkruntime.spec.translate import findings

ENTRY_POINT_GROUP = "sinkjob.sinks"
NO_SECRETS = Secrets({})


def sink_types() -> tuple[str, ...]:
    """The names of all sinks that a manifest can name: the modules of ours, and what other packages offer."""
    ours = {module.name for module in pkgutil.iter_modules(sinkruntime.sinks.__path__) if module.name[0] != "_"}
    return tuple(sorted(ours | {point.name for point in entry_points(group=ENTRY_POINT_GROUP)}))


def load_sink_class(type_name: str, path: FieldPath) -> type[Sink]:
    """The class of a type: `file`, an entry point's name, or `package.module:Class`. ManifestError at `path`."""
    if ":" in type_name:
        found = _load(EntryPoint(type_name, type_name, ENTRY_POINT_GROUP), path)
    elif any(module.name == type_name for module in pkgutil.iter_modules(sinkruntime.sinks.__path__)):
        value = f"{sinkruntime.sinks.__name__}.{type_name}:SINK"
        found = _load(EntryPoint(type_name, value, ENTRY_POINT_GROUP), path)
    else:
        points = entry_points(group=ENTRY_POINT_GROUP, name=type_name)
        if not points:
            raise _error(path, f"there is no sink `{type_name}`", suggestion(type_name, sink_types()))
        found = _load(next(iter(points)), path)
    if not (isinstance(found, type) and issubclass(found, Sink)):
        raise _error(path, f"`{type_name}` is not a sink", "a class that extends sinkruntime.api.Sink")
    return found


def _load(point: EntryPoint, path: FieldPath) -> Any:
    try:
        return point.load()
    except ModuleNotFoundError as error:
        module = point.value.partition(":")[0]
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            expected = "put its file into spec.deps.pyFiles, or install its package"
            raise _error(path, f"there is no module `{error.name}`", expected) from error
        expected = f"install it, as `pip install sinkjob[{point.name}]` does for a sink of ours"
        raise _error(path, f"the sink `{point.name}` needs the module `{error.name}`", expected) from error
    except AttributeError as error:
        raise _error(path, f"the sink `{point.name}` cannot be loaded: {error}") from error
    except Exception as error:  # a user's module may raise anything while it is imported
        message = f"the sink `{point.name}` cannot be loaded: {type(error).__name__}: {error}"
        raise _error(path, message) from error


def parse_options(
    sink: type[Sink],
    options: Mapping[str, Any],
    path: FieldPath,
    secrets: Secrets = NO_SECRETS,
) -> BaseModel:
    """The options as `sink.Options`; ManifestError with a problem for each that is wrong.

    `path` is that of the options, such as `("spec", "sinks", 1, "options")`; `secrets` are added to them.
    """
    merged, problems = _with_secrets(sink.Options, options, path, secrets)

    def hidden(within: FieldPath) -> bool:
        names = [str(part) for part in within]
        return ".".join(names) in secrets or any(holds_secret(name) for name in names)

    try:
        read = sink.Options.model_validate(merged, by_alias=True, by_name=False)
    except ValidationError as error:
        problems += [
            Problem(path_text((*path, *found.path)), None, secrets.hide(found.message), found.expected)
            for found in findings(error, sink.Options, merged, word="option", hidden=hidden)
        ]
        # From None: pydantic's error holds the values, which may be secrets.
        raise ManifestError(problems) from None
    except Exception as error:  # noqa: BLE001 - a sink's own validator may raise anything
        what = secrets.hide(f"{type(error).__name__}: {error}")
        raise ManifestError(
            [*problems, Problem(path_text(path), None, f"cannot be checked by the sink: {what}")]
        ) from None
    if problems:
        raise ManifestError(problems)
    return read


def _with_secrets(
    model: type[BaseModel], options: Mapping[str, Any], path: FieldPath, secrets: Secrets
) -> tuple[dict[str, Any], list[Problem]]:
    """Options and secrets together. A secret `catalog.token` goes into the option `catalog`, if the sink has it."""
    merged: dict[str, Any] = dict(options)
    problems = []
    names = {field.alias or name for name, field in model.model_fields.items()}
    for key, value in secrets.items():
        head, dot, rest = key.partition(".")
        nested = bool(dot) and head in names and isinstance(merged.get(head, {}), dict)
        place, name = (dict(merged.get(head, {})), rest) if nested else (merged, key)
        if name in place:
            problems.append(
                Problem(
                    path_text((*path, *((head,) if nested else ()), name)),
                    None,
                    "is in `optionsFrom` too",
                    "keep one of them",
                )
            )
            continue
        place[name] = value
        if nested:
            merged[head] = place
    return merged, problems


def _error(path: FieldPath, message: str, expected: str = "") -> ManifestError:
    return ManifestError([Problem(path_text(path), None, message, expected)])
