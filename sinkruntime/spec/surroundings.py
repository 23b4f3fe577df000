"""Looks whether the files and the code that a manifest names are there, where it runs without a cluster.

Called by `load_job` for a job that is to run, not for one that is only looked at: what is committed can be asked for
when the source is gone. Never imports or runs what it finds, never connects to anything.
"""

import ast
import importlib.machinery
import re
from collections.abc import Iterator
from pathlib import Path

from sinkruntime.errors import Problem
from sinkruntime.spec.checks_source import FILE_FORMATS
from sinkruntime.spec.imports import import_path
from sinkruntime.spec.load import Manifest
from sinkruntime.spec.paths import path_text, suggestion

_GLOB = re.compile(r"[*?\[{]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_EXPECTED_CODE = "the manifest's directory and spec.deps.pyFiles are searched"


def missing(manifest: Manifest) -> tuple[Problem, ...]:
    """All that the manifest names and that is not there, in the order of its lines."""
    problems = manifest.error([*_missing_files(manifest), *_missing_functions(manifest)]).problems
    return tuple(sorted(problems, key=lambda problem: problem.line or 0))


def _missing_files(manifest: Manifest) -> Iterator[Problem]:
    spec = manifest.job.spec
    named = [
        *((path_text(("spec", "deps", "pyFiles", index)), entry) for index, entry in enumerate(spec.deps.py_files)),
        *((path_text(("spec", "deps", "jars", index)), entry) for index, entry in enumerate(spec.deps.jars)),
    ]
    if spec.source.path is not None and spec.source.format.lower() in FILE_FORMATS:
        named.append(("spec.source.path", spec.source.path))
    for path, entry in named:
        if _SCHEME.match(entry) or _GLOB.search(entry):
            continue  # not on this machine, or for Spark to find
        file = manifest.base / entry
        if not file.exists():
            yield Problem(path, None, f"there is no file or directory {file}")


def _missing_functions(manifest: Manifest) -> Iterator[Problem]:
    spec = manifest.job.spec
    places = import_path(manifest.base, spec.deps.py_files)
    for index, step in enumerate(spec.transform):
        if step.python is None:
            continue
        module, _, function = step.python.partition(":")
        path = path_text(("spec", "transform", index, "python"))
        found = _find_module(module, places)
        if found is None:
            yield Problem(path, None, f"there is no module `{module}`", _EXPECTED_CODE)
            continue
        names = _names_in(found)
        if names is not None and function not in names:
            yield Problem(path, None, f"the module `{module}` has no `{function}`", suggestion(function, names))


def _find_module(name: str, places: list[str]) -> importlib.machinery.ModuleSpec | None:
    """Where a module would be loaded from; unlike `importlib.util.find_spec`, no package around it is imported."""
    finder = importlib.machinery.PathFinder
    first, *rest = name.split(".")
    found = finder.find_spec(first, places) or finder.find_spec(first)
    for end in range(1, len(rest) + 1):
        if found is None or found.submodule_search_locations is None:
            return None
        found = finder.find_spec(".".join([first, *rest[:end]]), list(found.submodule_search_locations))
    return found


def _names_in(module: importlib.machinery.ModuleSpec) -> list[str] | None:
    """The names that a module's source defines at its top level; None where reading does not tell."""
    if module.origin is None or not module.origin.endswith(".py"):
        return None
    try:
        tree = ast.parse(Path(module.origin).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None  # importing it says what is wrong, when the job starts
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.ImportFrom) and all(alias.name != "*" for alias in node.names):
            names += [alias.asname or alias.name for alias in node.names]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
        elif not isinstance(node, ast.Expr | ast.Import):
            return None  # a condition, a star: what it defines is known only when it runs
    return names
