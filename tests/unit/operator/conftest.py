"""What tests of the operator share: the stage on which worker processes play."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.operator.commit_world import Stage


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One loop and one clean parent of worker processes for the session."""
    made = Stage(tmp_path_factory.mktemp("stage"))
    yield made
    made.close()
