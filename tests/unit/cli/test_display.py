"""What `run` shows: lines that never flood, and a picture on a terminal."""

import io
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from subprocess import PIPE

import pytest
from rich.console import Console

from sinkruntime.cli.display import LINE_SECONDS, LiveDisplay, PlainDisplay, make_display
from sinkruntime.environment import SystemClock
from sinkruntime.protocol.ledger import Ledger, Offsets, Part, PartState, Position, Record, SinkEntry

POSITION = Position("query", 0, Offsets(""), Offsets(""))


class Hand:
    """A clock that is moved by hand."""

    now = 1000.0

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


def ledger(decided: int, committed: int, part: Part | None = None) -> Ledger:
    """All checkpoints after `committed` are pending."""
    records = tuple(
        Record(number, "r", 1, "rev", POSITION, {"lake": part or Part()})
        for number in range(committed + 1, decided + 1)
    )
    sinks = {"lake": SinkEntry(1, committed)}
    return Ledger("id", "tests/small", epoch=1, decided=decided, records=records, sinks=sinks)


@pytest.fixture
def plain() -> Iterator[tuple[PlainDisplay, Hand]]:
    clock = Hand()
    display = PlainDisplay(clock)
    yield display, clock
    display.close()


def test_the_first_checkpoint_is_a_line_and_the_next_only_after_a_second(
    plain: tuple[PlainDisplay, Hand], capsys: pytest.CaptureFixture[str]
) -> None:
    display, clock = plain
    display.started({"job": "tests/small", "epoch": "1"})
    display.ledger(ledger(0, 0))
    display.batch(0, 1000, 500.0)
    display.ledger(ledger(1, 0))
    assert capsys.readouterr().out == "job tests/small, epoch 1\n"
    display.ledger(ledger(1, 1))
    assert capsys.readouterr().out == "checkpoint 1 committed, 1,000 rows, 500 rows/s\n"
    for number in range(2, 500):
        display.ledger(ledger(number, number))
    assert capsys.readouterr().out == ""
    clock.now += LINE_SECONDS
    display.close()
    assert capsys.readouterr().out == "checkpoint 499 committed, 1,000 rows, 500 rows/s\n"


def test_a_line_that_was_held_back_comes_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay(SystemClock())
    display.ledger(ledger(0, 0))
    display.ledger(ledger(1, 1))
    display.ledger(ledger(3, 2))
    assert capsys.readouterr().out == "checkpoint 1 committed, 0 rows, 0.0 rows/s\n"
    deadline = time.monotonic() + 10 * LINE_SECONDS
    told = ""
    while not told and time.monotonic() < deadline:
        time.sleep(0.05)
        told = capsys.readouterr().out
    assert told == "checkpoint 2 committed, 1 pending, 0 rows, 0.0 rows/s\n"


def test_checkpoints_of_former_runs_are_no_news(
    plain: tuple[PlainDisplay, Hand], capsys: pytest.CaptureFixture[str]
) -> None:
    display, _ = plain
    display.ledger(ledger(7, 7))
    assert capsys.readouterr().out == ""
    display.ledger(ledger(8, 8))
    assert capsys.readouterr().out.startswith("checkpoint 8 committed, ")


def test_a_held_checkpoint_is_said_once_with_its_reason(
    plain: tuple[PlainDisplay, Hand], capsys: pytest.CaptureFixture[str]
) -> None:
    display, _ = plain
    held = Part(state=PartState.HELD, reason="TargetBehindLedger", message="it lost rows")
    for _ in range(3):
        display.ledger(ledger(1, 0, held))
    assert capsys.readouterr().out == "checkpoint 1 of sink lake is held: TargetBehindLedger: it lost rows\n"
    display.ledger(ledger(1, 0, replace(held, message="more")))
    assert capsys.readouterr().out == "checkpoint 1 of sink lake is held: TargetBehindLedger: more\n"


def test_the_end_shows_the_last_line_and_the_summary(
    plain: tuple[PlainDisplay, Hand], capsys: pytest.CaptureFixture[str]
) -> None:
    display, _ = plain
    display.ledger(ledger(0, 0))
    display.ledger(ledger(1, 1))
    display.ledger(ledger(2, 2))
    display.said("stopping")
    display.ended({"why": "asked to stop", "decided": "2", "lake": "2"})
    assert capsys.readouterr().out == (
        "checkpoint 1 committed, 0 rows, 0.0 rows/s\n"
        "stopping\n"
        "checkpoint 2 committed, 0 rows, 0.0 rows/s\n"
        "ended: asked to stop; 2 checkpoints decided; committed up to: lake 2\n"
    )


def test_a_terminal_shows_rows_checkpoints_sinks_and_trouble() -> None:
    out = io.StringIO()
    clock = Hand()
    console = Console(file=out, force_terminal=True, width=100, color_system=None)
    display = LiveDisplay(console, clock)
    display.ledger(ledger(0, 0))
    display.started({"job": "tests/small"})
    display.batch(3, 2500, 1250.0)
    display.ledger(ledger(2, 2))
    clock.now += 7
    display.ledger(ledger(4, 2, Part(state=PartState.HELD, reason="Full", message="no space")))
    display.said("[red] is text, not a style")
    display.ended({"why": "done", "decided": "4", "lake": "2"})
    text = out.getvalue()
    for shown in (
        "tests/small", "2,500, 1,250 rows/s", "4 decided, 2 committed, 2 pending", "7 s ago", "committed up to 2",
        "checkpoint 3 of lake: Full: no space", "[red] is text, not a style",
        "ended: done; 4 checkpoints decided; committed up to: lake 2",
    ):  # fmt: skip
        assert shown in text, shown


_TALK = """
import sys
from sinkruntime.cli import logs
from sinkruntime.cli.display import PlainDisplay
from sinkruntime.environment import SystemClock
logs.configure("warning", "text")
display = PlainDisplay(SystemClock())
sys.stdin.read()
for _ in range(3):
    display.said("a line")
print("and Python's own", flush=True)
"""


def test_a_job_goes_on_when_nobody_reads_its_lines_any_more() -> None:
    command = [sys.executable, "-c", _TALK]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.close()
        told = process.stderr.read()
    assert process.returncode == 0, told
    assert told.endswith("progress is no longer shown: Broken pipe\n")
    assert told.count("\n") == 1


def test_what_is_no_terminal_gets_lines() -> None:
    with make_display(Hand()) as display:
        assert isinstance(display, PlainDisplay)
