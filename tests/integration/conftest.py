"""The prepared job of the tests of starting: made once, with a warm JVM for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.place import Place
from tests.integration.warm import warm


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A job that has run over two input files (copy `early`) and then over a third (`late`).

    The folder is spoilt by whichever test was last: each begins with `restore`.
    """
    root = tmp_path_factory.mktemp("start")
    with warm(root / "warm.log") as runner:
        made = Place(root / "work", root / "saved", runner)
        made.work.mkdir()
        made.write_manifest()
        made.add_file(1)
        made.add_file(2)
        made.done()
        made.save("early")
        made.add_file(3)
        made.done()
        made.save("late")
        assert made.numbers("lake") == made.numbers("lines") == {1: 1, 2: 1, 3: 1}
        yield made
