"""What `sinkjob run` shows while it runs: a live picture on a terminal, plain lines elsewhere.

`local.job` calls it from several threads. It only shows; a failure to show never stops a job's protocol.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sinkruntime.api import Clock
from sinkruntime.cli.secrecy import hide
from sinkruntime.local.inspection import committed_up_to
from sinkruntime.protocol.ledger import Ledger, PartState

log = logging.getLogger(__name__)

#: A plain line at most so often; the live picture is drawn so often.
LINE_SECONDS = 1.0
DRAWS_PER_SECOND = 4

Trouble = tuple[int, str, str, str]  # checkpoint, sink, state, why


@dataclass(slots=True)
class Progress:
    """All that is known of a run, put together from what it tells."""

    facts: Mapping[str, str] = field(default_factory=dict)
    rows: int = 0
    rows_per_second: float = 0.0
    batch: int = -1
    decided: int = 0
    committed: int = 0
    pending: int = 0
    sinks: Mapping[str, int] = field(default_factory=dict)
    trouble: tuple[Trouble, ...] = ()

    def take(self, ledger: Ledger) -> None:
        """Read the ledger."""
        self.decided = ledger.decided
        self.committed = committed_up_to(ledger)
        self.pending = len(ledger.pending)
        self.sinks = {name: entry.committed for name, entry in sorted(ledger.sinks.items())}
        self.trouble = tuple(
            (record.number, sink, str(part.state), _why(part.reason, part.message))
            for record in ledger.pending
            for sink, part in record.parts.items()
            if part.state is PartState.HELD or (part.state is PartState.IN_DOUBT and part.reason)
        )

    def line(self) -> str:
        """`checkpoint 12 committed, 1 pending, 24,000 rows, 8,000 rows/s`."""
        pending = f", {self.pending} pending" if self.pending else ""
        return f"checkpoint {self.committed} committed{pending}, {self.rows:,} rows, {self.rate()}"

    def rate(self) -> str:
        """`8,000 rows/s`, of the last batch."""
        return f"{self.rows_per_second:,.{0 if self.rows_per_second >= 10 else 1}f} rows/s"


def _why(reason: str, message: str) -> str:
    return hide(": ".join(filter(None, [reason, message])))


def _ended(summary: Mapping[str, str]) -> str:
    """`ended: the source is done; 12 checkpoints decided; committed up to: lake 12, screen 12`."""
    sinks = ", ".join(f"{name} {number}" for name, number in summary.items() if name not in ("why", "decided"))
    why, decided = summary.get("why", ""), summary.get("decided", "0")
    return f"ended: {why}; {decided} checkpoints decided; committed up to: {sinks or 'none'}"


def _shown(write: Callable[[], None]) -> None:
    """Write; where nobody reads any more (`| head`), the job goes on and the rest goes nowhere."""
    try:
        write()
    except OSError as error:
        log.warning("progress is no longer shown: %s", error.strerror)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except RuntimeError as error:  # a signal came in the middle of a write, and its handler has something to say
        log.warning("a line is not shown: %s", error)


class PlainDisplay:
    """Lines on standard output: the first and the last checkpoint, and between them at most one a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._progress = Progress()
        self._shown: int | None = None  # the checkpoint of the last line; what former runs have done is no news
        self._shown_at = float("-inf")
        self._told: set[Trouble] = set()
        self._timer: threading.Timer | None = None

    def started(self, facts: Mapping[str, str]) -> None:
        """See `Display`."""
        with self._lock:
            self._say(", ".join(f"{name} {value}" for name, value in facts.items()))

    def batch(self, batch_id: int, rows: int, rows_per_second: float) -> None:
        """See `Display`."""
        with self._lock:
            self._progress.rows += rows
            self._progress.rows_per_second = rows_per_second

    def ledger(self, ledger: Ledger) -> None:
        """See `Display`."""
        with self._lock:
            self._progress.take(ledger)
            if self._shown is None:
                self._shown = self._progress.committed
            for trouble in self._progress.trouble:
                if trouble not in self._told:
                    number, sink, state, why = trouble
                    self._say(f"checkpoint {number} of sink {sink} is {state.replace('_', ' ')}: {why}")
            self._told = set(self._progress.trouble)
            self._line()

    def said(self, text: str) -> None:
        """See `Display`."""
        with self._lock:
            self._say(text)

    def ended(self, summary: Mapping[str, str]) -> None:
        """See `Display`."""
        with self._lock:
            self._flush()
            self._say(_ended(summary))

    def close(self) -> None:
        """Show what is held back; nothing is shown afterwards."""
        with self._lock:
            self._flush()

    def _line(self) -> None:
        """The line of the last committed checkpoint: now, or when a second is over since the one before."""
        if not self._news() or self._timer is not None:
            return
        wait = self._shown_at + LINE_SECONDS - self._clock.monotonic()
        if wait <= 0:
            self._flush()
            return
        self._timer = threading.Timer(wait, self.close)
        self._timer.daemon = True
        self._timer.start()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._news():
            self._shown, self._shown_at = self._progress.committed, self._clock.monotonic()
            self._say(self._progress.line())

    def _news(self) -> bool:
        return self._shown is not None and self._progress.committed > self._shown

    def _say(self, text: str) -> None:
        _shown(lambda: click.echo(hide(text)))


class LiveDisplay:
    """A picture of the present state below the lines that scroll by; for terminals."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console = console
        self._clock = clock
        self._lock = threading.RLock()
        self._progress = Progress()
        self._committed_at: float | None = None
        self._live = Live(console=console, get_renderable=self._picture, refresh_per_second=DRAWS_PER_SECOND)

    def started(self, facts: Mapping[str, str]) -> None:
        """See `Display`."""
        with self._lock:
            self._progress.facts = dict(facts)
        self._live.start()

    def batch(self, batch_id: int, rows: int, rows_per_second: float) -> None:
        """See `Display`."""
        with self._lock:
            self._progress.rows += rows
            self._progress.rows_per_second = rows_per_second
            self._progress.batch = batch_id

    def ledger(self, ledger: Ledger) -> None:
        """See `Display`."""
        with self._lock:
            before = self._progress.committed
            self._progress.take(ledger)
            if self._progress.committed > before:
                self._committed_at = self._clock.monotonic()

    def said(self, text: str) -> None:
        """See `Display`."""
        _shown(lambda: self._console.print(hide(text), highlight=False, markup=False))

    def ended(self, summary: Mapping[str, str]) -> None:
        """See `Display`."""
        self.close()
        self.said(_ended(summary))

    def close(self) -> None:
        """Leave the last picture on the screen, and draw no more."""
        if self._live.is_started:
            self._live.refresh()
            self._live.stop()

    def _picture(self) -> Group:
        with self._lock:
            now = self._progress
            ago = None if self._committed_at is None else self._clock.monotonic() - self._committed_at
            rows: list[tuple[str, Text]] = [(name, Text(value)) for name, value in now.facts.items()]
            rows += [
                ("rows", Text(f"{now.rows:,}, {now.rate()}")),
                ("checkpoint", Text(f"{now.decided} decided, {now.committed} committed, {now.pending} pending")),
                ("last commit", Text("none in this run" if ago is None else f"{ago:.0f} s ago")),
            ]
            rows += [(f"sink {name}", Text(f"committed up to {number}")) for name, number in now.sinks.items()]
            rows += [
                (f"{state.replace('_', ' ')}", Text(f"checkpoint {number} of {sink}: {why}", style="red"))
                for number, sink, state, why in now.trouble
            ]
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column()
        for name, value in rows:
            grid.add_row(name, value)
        return Group(grid)


@contextmanager
def make_display(clock: Clock) -> Iterator[PlainDisplay | LiveDisplay]:
    """The display for this process's standard output, closed at the end, also after an error."""
    console = Console()
    display = LiveDisplay(console, clock) if console.is_terminal else PlainDisplay(clock)
    try:
        yield display
    finally:
        display.close()
