"""The collector's live line: a bar in a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column

from services.tally import Tally

PLAIN_EVERY_S = 10.0


class Display(Protocol):
    """Shows a tally while it grows."""

    def show(self, tally: Tally) -> None:
        """Bring the display up to date."""
        ...

    def say(self, text: str) -> None:
        """Print a line of its own."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


class Bar:
    """A progress bar that is redrawn in place."""

    def __init__(self, expected: int) -> None:
        self._progress = Progress(
            TextColumn("rollouts", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=None, table_column=Column(max_width=24)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[numbers]}", table_column=Column(no_wrap=True)),
            console=Console(stderr=True),
            auto_refresh=False,
        )
        self._task = self._progress.add_task("rollouts", total=expected, numbers="")
        self._progress.start()

    def show(self, tally: Tally) -> None:
        """See `Display.show`."""
        self._progress.update(self._task, completed=tally.measured, numbers=numbers(tally))
        self._progress.refresh()

    def say(self, text: str) -> None:
        """See `Display.say`."""
        self._progress.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """See `Display.close`."""
        self._progress.stop()


class PlainLines:
    """A line every ten seconds, for logs."""

    def __init__(self) -> None:
        self._next = time.monotonic() + PLAIN_EVERY_S

    def show(self, tally: Tally) -> None:
        """See `Display.show`."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PLAIN_EVERY_S
            self.say(f"rollouts {tally.measured}/{tally.expected}  {numbers(tally)}")

    def say(self, text: str) -> None:
        """See `Display.say`."""
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """See `Display.close`."""


def display_for(expected: int) -> Display:
    """A bar where someone looks on, lines elsewhere."""
    return Bar(expected) if sys.stderr.isatty() else PlainLines()


async def keep_showing(display: Display, tally: Tally) -> None:
    """Refresh until cancelled."""
    while True:
        display.show(tally)
        await asyncio.sleep(0.25)


def numbers(tally: Tally) -> str:
    """Success rate, mean reward with its standard error, speed, time left, failures."""
    parts: list[str] = []
    if tally.successes is not None:
        parts.append(f"success {tally.successes / tally.measured:.1%}")
    if tally.mean is not None:
        error = f" ± {tally.stderr:.2f}" if tally.stderr is not None else ""
        parts.append(f"reward {tally.mean:.2f}{error}")
    parts.append(f"{tally.rate:.1f}/s")
    if tally.eta_s is not None:
        parts.append(f"{duration(tally.eta_s)} left")
    if tally.drift:
        parts.append(f"drift {tally.drift:.1%} of turns")
    if tally.failed_attempts:
        parts.append(f"{tally.failed_attempts} attempts failed, {tally.failed} given up")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """`4.2 s`, `47 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
