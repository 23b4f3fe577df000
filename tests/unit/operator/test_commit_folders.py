"""What killed processes leave of their workers' folders: tokens, gone when the next one starts."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from sinkoperator.commits.folders import PREFIX
from sinkoperator.commits.frames import Json
from tests.unit.operator.commit_world import opening, place, spec, start, until

TOKEN = "a-token-that-lives-for-an-hour"


def tokens(folder: Path) -> list[Path]:
    """The files below it that hold the token."""
    return [path for path in folder.glob(f"{PREFIX}*/*/*") if path.is_file() and TOKEN in path.read_text()]


def test_tokens_of_a_killed_zygote_go_when_the_next_one_starts(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environ = {**os.environ, "TMPDIR": str(temporary)}
    identity: Json = {"files": {"token": TOKEN}, "environment": {}, "renew_seconds": 0}

    async def play() -> None:
        first, other = await start(tmp_path / "1", environ), await start(tmp_path / "2", environ)
        async with place(tmp_path, first) as dying, place(tmp_path, other) as living:
            await dying.open(opening(spec(dying.folder), identity=identity))
            worker = await living.open(opening(spec(living.folder), identity=identity))
            assert len(tokens(temporary)) == 2
            killed = first.process_id
            assert killed is not None
            os.kill(killed, signal.SIGKILL)
            await until(lambda: first.process_id is None)
            assert len(tokens(temporary)) == 2, "a killed process removes nothing"
            await first.start()
            assert len(tokens(temporary)) == 1, "that of the one that lives"
            assert not worker.gone
        await first.stop()
        await other.stop()
        assert list(temporary.iterdir()) == []

    asyncio.run(play())
