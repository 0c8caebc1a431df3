"""Shows a collection's progress: a bar in a terminal, otherwise a line every ten seconds."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.segment import Segment
from rich.table import Column
from rich.text import Text

from rollyard.records.scores import ClusteredMean
from rollyard.records.terminal import duration, plain, unwrapped
from rollyard.records.types import CollectionStatus


def is_terminal(stream: TextIO) -> bool:
    return unwrapped(stream).isatty()


def console(stream: TextIO, **options: Any) -> Console:
    """Return a console that writes to `stream` (`sys.stdout` or `sys.stderr`)."""
    return _PlainConsole(file=unwrapped(stream), **options)


class _PlainConsole(Console):
    """A console that escapes control characters in text, but not Rich's own styles and cursor movements."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Escape the text before it is laid out, because escaping changes the length of lines."""
        return super().render_str(plain(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain(segment.text), segment.style)


PLAIN_EVERY_S = 10.0
BAR_MIN_WIDTH = 10
BAR_MAX_WIDTH = 24
MIN_AGE_S = 1.0
"""The age of the oldest rollout is shown only if it is at least this many seconds."""


class Display(Protocol):
    def show(self, status: CollectionStatus) -> None: ...
    def print_line(self, text: str) -> None: ...
    def close(self) -> None: ...


class RolloutBar(Progress):
    """A bar of measured rollouts, followed by `numbers`."""

    def __init__(self, expected: int, title: str = "rollouts") -> None:
        super().__init__(
            TextColumn(title, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=None, table_column=Column(min_width=BAR_MIN_WIDTH, max_width=BAR_MAX_WIDTH)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[numbers]}", table_column=Column(no_wrap=True)),
            console=console(sys.stderr),
            auto_refresh=False,
        )
        self.add_task(title, total=expected, numbers="")
        self.start()

    def advance_to(self, measured: int, numbers: str) -> None:
        self.update(self.task_ids[0], completed=measured, numbers=numbers)
        self.refresh()


class ProgressBar:
    def __init__(self, expected: int) -> None:
        self._bar = RolloutBar(expected)

    def show(self, status: CollectionStatus) -> None:
        done = f"rollouts {status.measured}/{status.expected} "
        room = self._bar.console.width - len(done) - BAR_MIN_WIDTH - 3
        self._bar.advance_to(status.measured, numbers(status, room))

    def print_line(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._bar.stop()


class PlainLines:
    def __init__(self) -> None:
        self._next = time.monotonic() + PLAIN_EVERY_S

    def show(self, status: CollectionStatus) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PLAIN_EVERY_S
            self.print_line(f"rollouts {status.measured}/{status.expected}  {numbers(status)}")

    def print_line(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class ProblemLines(PlainLines):
    """Lines without progress, of a process whose parent shows it."""

    def show(self, status: CollectionStatus) -> None:
        pass


def display_for(expected: int) -> Display:
    return ProgressBar(expected) if is_terminal(sys.stderr) else PlainLines()


async def keep_showing(display: Display, current: Callable[[], CollectionStatus]) -> None:
    while True:
        display.show(current())
        await asyncio.sleep(0.25)


def numbers(status: CollectionStatus, room: int | None = None) -> str:
    """Format the success rate, reward, speed, time left, failures and so on.

    If they do not fit in `room` characters, the least important ones are omitted.
    """
    parts = _parts(status)
    while room is not None and len(parts) > 1 and sum(len(text) + 2 for _, text in parts) - 2 > room:
        parts.remove(max(parts))
    return "  ".join(text for _, text in parts)


def _parts(status: CollectionStatus) -> list[tuple[int, str]]:
    """Return the parts in display order, each with a rank. If space is short, the highest ranks are dropped first."""
    parts: list[tuple[int, str]] = []
    if status.successes is not None and status.measured:
        rate = ClusteredMean(
            status.successes / status.measured, status.success_stderr, status.measured, max(status.tasks, 1)
        )
        parts.append((3, f"success {rate.value:.1%}{_error(rate)}"))
    if status.mean_reward is not None:
        error = f" ± {status.reward_stderr:.2f}" if status.reward_stderr is not None else ""
        parts.append((4, f"reward {status.mean_reward:.2f}{error}"))
    parts.append((0, f"{status.rollouts_per_s:.1f}/s"))
    if status.eta_s is not None:
        parts.append((1, f"{duration(status.eta_s)} left"))
    if status.in_flight:
        parts.append((5, f"{status.in_flight}{f' of {status.concurrency}' if status.concurrency else ''} in flight"))
    if status.oldest_s >= MIN_AGE_S:
        parts.append((6, f"oldest {duration(status.oldest_s)}"))
    if status.token_breaks:
        parts.append((7, f"drift {status.token_breaks / status.token_turns:.1%} of turns"))
    if status.failed_attempts:
        parts.append((2, f"{status.failed_attempts} failed"))
    if status.failed:
        parts.append((2, f"{status.failed} abandoned"))
    return parts


def _error(rate: ClusteredMean) -> str:
    """Format the standard error as ` ± 2.1%`; rates of 0% and 100%, which have none, get a confidence bound instead."""
    if rate.stderr is not None:
        return f" ± {rate.stderr:.1%}"
    if rate.value not in (0.0, 1.0) or (interval := rate.share_interval) is None:
        return ""
    return f" (at most {interval[1]:.1%})" if rate.value == 0 else f" (at least {interval[0]:.1%})"
