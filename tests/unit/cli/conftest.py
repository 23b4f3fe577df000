"""A job in a folder of its own, for the tests of the command line."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sinkruntime.cli.secrecy import conceal
from sinkruntime.sinks.memory.session import INTERCEPTS, TARGETS
from tests.unit.cli.fabricate import Fabricated


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Fabricated]:
    """A manifest that never ran; its target and import path are gone afterwards."""
    before = list(sys.path)
    made = Fabricated(tmp_path)
    made.write()
    yield made
    TARGETS.pop(tmp_path.name, None)
    INTERCEPTS.pop(tmp_path.name, None)
    sys.path[:] = before
    conceal([])
