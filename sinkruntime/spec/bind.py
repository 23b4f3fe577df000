"""Joins a manifest with what it names outside itself: the classes of its sinks, their options, its secrets.

Called by the command line and the driver before anything starts. Imports the sinks' modules, connects to nothing.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from sinkruntime.api import Guarantee, Sink, SinkIdentity
from sinkruntime.errors import ManifestError, Problem
from sinkruntime.spec.delivery import SinkSpec
from sinkruntime.spec.imports import add_import_path
from sinkruntime.spec.load import Manifest, draft_manifest
from sinkruntime.spec.options_from import Places, Secrets, local_places, read_options_from
from sinkruntime.spec.paths import FieldPath, path_text
from sinkruntime.spec.quantities import Duration
from sinkruntime.spec.sink_options import load_sink_class, parse_options
from sinkruntime.spec.source import OptionsFrom
from sinkruntime.spec.surroundings import missing


@dataclass(frozen=True, slots=True, repr=False)
class BoundSink:
    """One sink of a job: what the manifest says, the class, and the options, which may hold secrets (so no repr)."""

    spec: SinkSpec
    sink_class: type[Sink]
    options: BaseModel


@dataclass(frozen=True, slots=True, repr=False)
class BoundJob:
    """A manifest that can be run: `source_secrets` and `checkpoint_secrets` come from their `optionsFrom`."""

    manifest: Manifest
    sinks: tuple[BoundSink, ...]
    source_secrets: Secrets
    checkpoint_secrets: Secrets


def load_job(
    path: str | os.PathLike[str], environ: Mapping[str, str] | None = None, *, to_run: bool = False
) -> BoundJob:
    """Read a manifest without a cluster, with all that it names; ManifestError with everything that is wrong.

    `environ` is this process's environment by default. `to_run` also looks for the source's files and the transforms'
    code, which a job that is only looked at does not need.
    """
    draft = draft_manifest(path)
    further: list[Problem] = []
    job = None
    if draft.manifest is not None:
        try:
            job = bind(draft.manifest, local_places(draft.manifest.base, environ))
        except ManifestError as error:
            further += error.problems
        if to_run:
            further += missing(draft.manifest)
    known = {problem.path for problem in draft.problems}
    problems = [*draft.problems, *(problem for problem in further if problem.path not in known)]
    if problems or job is None:
        raise ManifestError(sorted(problems, key=lambda problem: problem.line or 0), draft.source)
    return job


def bind(manifest: Manifest, places: Places) -> BoundJob:
    """Find the classes, options and secrets of a job; ManifestError with all that is missing or wrong."""
    spec = manifest.job.spec
    add_import_path(manifest.base, spec.deps.py_files)
    problems: list[Problem] = []
    source = _secrets(spec.source.options_from, places, ("spec", "source"), problems)
    problems += [
        Problem(path_text(("spec", "source", "options", key)), None, "is in `optionsFrom` too", "keep one of them")
        for key in spec.source.options
        if source is not None and key.lower() in {name.lower() for name in source}
    ]
    checkpoint = _secrets(spec.checkpoint.options_from, places, ("spec", "checkpoint"), problems)
    sinks = [_bind_sink(sink, places, ("spec", "sinks", index), problems) for index, sink in enumerate(spec.sinks)]
    bound = tuple(sink for sink in sinks if sink is not None)
    problems += _too_many_pending(bound, spec.commit.max_pending)
    problems += _gone_too_soon(bound, spec.commit.timeout)
    if problems or source is None or checkpoint is None:
        raise manifest.error(problems)
    return BoundJob(manifest, bound, source, checkpoint)


def _too_many_pending(sinks: Sequence[BoundSink], max_pending: int) -> Iterator[Problem]:
    for sink in sinks:
        most = sink.sink_class.pending_max(sink.options)
        if most is not None and max_pending > most:
            message = (
                f"sink `{sink.spec.name}` builds each checkpoint on those before it, which must be committed first"
            )
            yield Problem("spec.commit.maxPending", None, message, f"at most {most}")
            return


def _gone_too_soon(sinks: Sequence[BoundSink], timeout: Duration) -> Iterator[Problem]:
    """A decision is made only while what is staged has twice the timeout to live: that must be possible at all."""
    for sink in sinks:
        if sink.sink_class.staged_life_seconds is Sink.staged_life_seconds:
            continue
        life = sink.sink_class(sink.options, SinkIdentity("", sink.spec.name, "")).staged_life_seconds()
        if life is not None and life <= 2 * timeout.seconds:
            message = (
                f"{timeout} is too long for sink `{sink.spec.name}`, whose staged rows live for {life:g} s: they must "
                "live for more than twice this time, or no checkpoint is ever decided"
            )
            yield Problem(
                "spec.commit.timeout", None, message, f"less than {life / 2:g}s, or staged rows that live longer"
            )


def _secrets(
    entries: Sequence[OptionsFrom], places: Places, path: FieldPath, problems: list[Problem]
) -> Secrets | None:
    try:
        return read_options_from(entries, places, (*path, "optionsFrom"))
    except ManifestError as error:
        problems.extend(error.problems)
        return None


def _bind_sink(sink: SinkSpec, places: Places, path: FieldPath, problems: list[Problem]) -> BoundSink | None:
    secrets = _secrets(sink.options_from, places, path, problems)
    try:
        sink_class = load_sink_class(sink.type, (*path, "type"))
        if secrets is None:
            return None
        options = parse_options(sink_class, sink.options, (*path, "options"), secrets)
        if places.base is not None:
            options = sink_class.located(options, str(places.base))
    except ManifestError as error:
        problems.extend(error.problems)
        return None
    offer = sink_class.guarantee(options, {})
    if sink.guarantee is not None and not offer.guarantee >= Guarantee(sink.guarantee):
        message = f"`{sink.guarantee}` is more than this sink can give with these options: {offer.why}"
        problems.append(Problem(path_text((*path, "guarantee")), None, message, f"at most `{offer.guarantee.value}`"))
    if sink.dead_letter is not None and not getattr(options, "rejects_rows", sink_class.rejects_rows):
        never = " with these options" if sink_class.rejects_rows else ""
        message = f"the sink `{sink.type}` never turns down single rows{never}, so there is nothing for dead letters"
        problems.append(Problem(path_text((*path, "deadLetter")), None, message, "leave it out"))
    return BoundSink(sink, sink_class, options)
