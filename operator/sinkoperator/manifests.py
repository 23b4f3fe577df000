"""Reads the SinkJob of an API server as far as can be told without its secrets: the spec, what is wrong, who commits.

Called by `gather` for each generation of a job. Sinks of ours and of installed packages are asked about their options;
a user's own class is never imported here, because its code is not the operator's to run. Connects to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pydantic import BaseModel

from sinkruntime.api import Guarantee, RunOn, Sink
from sinkruntime.errors import ManifestError, Problem
from sinkruntime.kube import Object
from sinkruntime.spec.delivery import SinkSpec
from sinkruntime.spec.load import parse_object
from sinkruntime.spec.models import SinkJobSpec
from sinkruntime.spec.paths import FieldPath, path_text
from sinkruntime.spec.sink_options import load_sink_class, parse_options


@dataclass(frozen=True, slots=True)
class Read:
    """`spec` is None where `problems` says why; `run_on` has for each sink where its committer runs."""

    spec: SinkJobSpec | None
    problems: tuple[Problem, ...] = ()
    run_on: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def read(body: Object) -> Read:
    """Read a SinkJob. Never raises: whatever is wrong is among the problems, with the field's path."""
    try:
        spec = parse_object({key: value for key, value in body.items() if key != "status"}).spec
    except ManifestError as error:
        return Read(None, error.problems)
    run_on: dict[str, str] = {}
    problems: list[Problem] = []
    for index, sink in enumerate(spec.sinks):
        try:
            run_on[sink.name] = _examine(sink, ("spec", "sinks", index))
        except ManifestError as error:
            problems += error.problems
    return Read(None, tuple(problems)) if problems else Read(spec, (), run_on)


def _examine(sink: SinkSpec, path: FieldPath) -> str:
    """Where the sink's committer runs. Raises `ManifestError` with what is wrong with the sink."""
    asked = sink.commit.run_on
    if ":" in sink.type:
        return asked or RunOn.JOB.value
    sink_class = load_sink_class(sink.type, (*path, "type"))
    try:
        options = parse_options(sink_class, sink.options, (*path, "options"))
    except ManifestError:
        if sink.options_from:
            return asked or RunOn.OPERATOR.value  # what is missing here may be among the secrets
        raise
    if not sink.options_from:
        _check_guarantee(sink, sink_class, options, path)
    return asked or sink_class.default_run_on(options).value


def _check_guarantee(sink: SinkSpec, sink_class: type[Sink], options: BaseModel, path: FieldPath) -> None:
    offer = sink_class.guarantee(options, {})
    if sink.guarantee is None or offer.guarantee >= Guarantee(sink.guarantee):
        return
    message = f"`{sink.guarantee}` is more than this sink can give with these options: {offer.why}"
    at = path_text((*path, "guarantee"))
    raise ManifestError([Problem(at, None, message, f"at most `{offer.guarantee.value}`")])
