"""Reads a manifest: from a file, from text, or from an object of the API server.

Called by the command line, the driver and the operator. Collects all that is wrong before it raises.
Never reads a secret, never imports a sink: `bind.py` does.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sinkruntime.errors import ManifestError, Problem
from sinkruntime.spec.checks import contradictions
from sinkruntime.spec.models import KIND, SinkJob
from sinkruntime.spec.paths import FieldPath, Finding, path_text
from sinkruntime.spec.translate import findings
from sinkruntime.spec.yaml_text import NO_LINES, TEXT_BYTES_MAX, Lines, read_yaml


@dataclass(frozen=True, slots=True)
class Manifest:
    """A job that was read, and where: `base` is the directory that its relative paths begin at."""

    job: SinkJob
    base: Path
    source: str = ""
    lines: Lines = NO_LINES

    def error(self, problems: Iterable[Problem]) -> ManifestError:
        """The problems with the lines of their fields."""
        return ManifestError([_placed(problem, self.lines) for problem in problems], self.source)


@dataclass(frozen=True, slots=True)
class Draft:
    """A manifest with its problems; `manifest` is what could be read of it, None when too little could."""

    manifest: Manifest | None
    problems: tuple[Problem, ...]
    source: str


def load_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Read and check the manifest in a file; ManifestError with all that is wrong."""
    return _finished(draft_manifest(path))


def parse_manifest(text: str, source: str = "", base: Path = Path()) -> Manifest:
    """As `load_manifest`, from text; `source` is the name that messages begin with."""
    return _finished(draft_text(text, source, base))


def parse_object(value: Mapping[str, Any]) -> SinkJob:
    """As `load_manifest`, from an object of the API server; problems then have no line."""
    job, found = _examine(dict(value))
    if found or job is None:
        raise ManifestError([_problem(finding) for finding in found])
    return job


def draft_manifest(path: str | os.PathLike[str]) -> Draft:
    """Read a file as far as it goes; ManifestError only when it is no YAML mapping at all."""
    file = Path(path)
    try:
        with file.open("rb") as stream:
            content = stream.read(TEXT_BYTES_MAX + 1)
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ManifestError([Problem("", line, "not UTF-8 text")], str(path)) from error
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ManifestError([Problem("", None, f"cannot be read: {what}")], str(path)) from error
    return draft_text(text, str(path), file.parent)


def draft_text(text: str, source: str, base: Path) -> Draft:
    """As `draft_manifest`, from text."""
    document = read_yaml(text, source)
    job, found = _examine(document.value)
    known = {problem.path for problem in document.problems}
    problems = [_placed(_problem(finding), document.lines) for finding in found]
    problems = [*document.problems, *(problem for problem in problems if problem.path not in known)]
    manifest = None if job is None else Manifest(job, base, source, document.lines)
    return Draft(manifest, tuple(sorted(problems, key=lambda problem: problem.line or 0)), source)


def _finished(draft: Draft) -> Manifest:
    if draft.problems or draft.manifest is None:
        raise ManifestError(draft.problems, draft.source)
    return draft.manifest


def _problem(finding: Finding) -> Problem:
    return Problem(path_text(finding.path), None, finding.message, finding.expected)


def _placed(problem: Problem, lines: Lines) -> Problem:
    return Problem(problem.path, problem.line or lines.of(problem.path), problem.message, problem.expected)


def _examine(value: dict[str, Any]) -> tuple[SinkJob | None, list[Finding]]:
    """The job and what is wrong; contradictions are looked for even beside fields that are wrong by themselves."""
    if value.get("kind", KIND) != KIND:
        return None, [Finding(("kind",), "this is not a SinkJob", f"write `kind: {KIND}`")]
    try:
        job = _read(value)
    except ValidationError as error:
        found = findings(error, SinkJob, value)
        rest = _without(value, [finding.path for finding in found])
        try:
            job = _read(rest)
        except ValidationError:
            return None, found
        further = [finding for finding in contradictions(job) if not _touches(finding.path, found)]
        return job, found + further
    return job, contradictions(job)


def _read(value: Any) -> SinkJob:
    """The manifest's own names only: the attributes' names (`max_pending`) are for code."""
    return SinkJob.model_validate(value, by_alias=True, by_name=False)


def _touches(path: FieldPath, found: Sequence[Finding]) -> bool:
    """Whether a contradiction could come only from a wrong field beside it or within it, which was left out."""
    return any(path[:-1] == other.path[:-1] or other.path[: len(path)] == path for other in found)


def _without(value: Any, paths: Sequence[FieldPath]) -> Any:
    """A copy without the fields at `paths`. Entries of lists become null: the places of the others stay."""
    if () in paths:
        return None
    heads = {path[0] for path in paths}
    below = {head: [path[1:] for path in paths if path[0] == head] for head in heads}
    if isinstance(value, Mapping):
        kept = {key: _without(inner, below.get(key, [])) for key, inner in value.items()}
        return {key: inner for key, inner in kept.items() if () not in below.get(key, [])}
    if isinstance(value, list):
        return [_without(inner, below.get(index, [])) for index, inner in enumerate(value)]
    return value
