"""Where users' code is looked for: their sinks, their transforms.

`bind` lets this process import it, the Spark layer its executors. Imports nothing itself.
"""

import sys
from collections.abc import Sequence
from pathlib import Path


def import_path(base: Path, py_files: Sequence[str]) -> list[str]:
    """The manifest's directory, then `deps.pyFiles` (of a `.py` file its directory)."""
    found = [base.absolute()]
    for entry in py_files:
        path = found[0] / entry
        found.append(path.parent if path.suffix == ".py" else path)
    return [str(path) for path in found]


def add_import_path(base: Path, py_files: Sequence[str]) -> None:
    """Let this process import users' code, after everything of ours."""
    sys.path += [entry for entry in import_path(base, py_files) if entry not in sys.path]
