"""Sinks that write to the terminal: a line per step, or a block of all metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

from rich.columns import Columns
from rich.console import Console, Group
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from rollyard.records.io.terminal import unwrapped
from rollyard.training.metrics.formatting import NORMALLY_ZERO, grouped, short_name, value_text

_LINE = (
    *("train/reward", "train/correct_rate", "train/parse_err_rate"),
    *("train/avg_completion_length", "train/total_completion_tokens"),
    *("train/loss", "train/kl", "train/kl_initial", "train/ratio_max", "train/clip_rate", "train/entropy"),
    "train/grad_norm",
    *("train/skipped_groups", "train/failed_rollouts", "train/policy_lag", "perf/step_s", "perf/rollout_wait_s"),
)
"""What a line shows."""


class PrintSink:
    """Prints a line per step, without colours. Implements `MetricsSink`."""

    def __init__(self, stream: TextIO, max_steps: int = 0) -> None:
        """`max_steps`: the number of the last step; 0 if it is unknown."""
        self._stream = stream
        self._max_steps = max_steps

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        names = [name for name in _LINE if name in metrics]
        names += [name for name in metrics if name.startswith("eval/")]
        chosen = [name for name in names if metrics[name] or name not in NORMALLY_ZERO]
        parts = [f"{short_name(name)} {value_text(name, metrics[name])}" for name in chosen]
        print("  ".join([step_title(step, self._max_steps), *parts]), file=self._stream, flush=True)

    def close(self, *, failed: bool) -> None:
        pass


class RichSink:
    """Prints a block per step with all metrics in groups side by side. Implements `MetricsSink`."""

    def __init__(self, stream: TextIO, max_steps: int = 0) -> None:
        """`stream` must be a terminal. `max_steps`: the number of the last step; 0 if it is unknown."""
        # Names are escaped by short_name, so that the stream does not need to escape Rich's own output.
        self._console = Console(file=unwrapped(stream), highlight=False)
        self._max_steps = max_steps
        self._previous: dict[str, float] = {}

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        title = Text(step_title(step, self._max_steps), "bold")
        if (change := self._change(metrics)) is not None:
            title.append(f"  {change}", "green" if change.startswith("+") else "red")
        columns = [_column(name, rows) for name, rows in grouped(metrics)]
        self._console.print(Group(Rule(title, align="left"), Columns(columns, padding=(0, 4))))
        self._previous |= metrics

    def close(self, *, failed: bool) -> None:
        pass

    def _change(self, metrics: Mapping[str, float]) -> str | None:
        """Return the change of the reward since the previous step; None if there is none."""
        new, old = metrics.get("train/reward"), self._previous.get("train/reward")
        return None if new is None or old is None or new == old else f"{new - old:+.4g} reward"


def step_title(step: int, max_steps: int) -> str:
    """Return `step 3/20`; without `max_steps`, `step 3`."""
    return f"step {step}/{max_steps}" if max_steps else f"step {step}"


def _column(title: str, rows: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_row(Text(title, "bold cyan"), "")
    for name, value in rows:
        table.add_row(Text(name, "dim"), Text(value))
    return table
