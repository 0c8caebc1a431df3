"""Shows a training run in the terminal: messages while it runs, and its result."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from rollyard.analysis.metrics.training.metrics_file import MetricsFile
from rollyard.training.metrics.formatting import short_name, value_text
from rollyard.training.run.run_training import TrainingEnd
from rollyard.training.run_paths import TrainingPaths
from rollyard.training.versions import version_of_step

_TRAIN = ("train/reward", "train/correct_rate", "train/parse_err_rate", "train/avg_completion_length")
_EVAL = ("eval/reward", "eval/correct_rate", "eval/parse_err_rate")
_WINDOW = 5
"""Number of updates at each end that the result averages, because a single one depends on its few tasks."""


class Messages:
    """Prints messages to stderr; metrics go to stdout."""

    def __init__(self, here: Path) -> None:
        self.here = here
        self._prefix = f"{here}/"

    def print_line(self, text: str) -> None:
        print(self.shortened(text), file=sys.stderr, flush=True)

    def shortened(self, text: str) -> str:
        """Return the text with paths relative to the working directory."""
        return text.replace(self._prefix, "")


def result(end: TrainingEnd, paths: TrainingPaths) -> str:
    """Return how training ended: figures before and after, and what to do next."""
    file = MetricsFile(paths.metrics)
    file.advance()
    steps = {step: file.at(step) for step in file.steps}
    done = max(
        (step for step, metrics in steps.items() if any(name.startswith("train/") for name in metrics)), default=0
    )
    lines = [*_changes(steps)]
    folder = shlex.quote(str(paths.root))
    lines.append(f"  curves     ng_viewer {folder}")
    checkpoint = paths.checkpoints / version_of_step(done)
    if checkpoint.is_dir():
        lines.append(f"  policy     {checkpoint}")
    if end == "complete":
        lines.append(f"ng_train: complete, {_updates(done)}; everything is in {paths.root}")
    else:
        lines.append(f"ng_train: interrupted after {_updates(done)}; the same command continues")
    return "\n".join(lines)


def _updates(count: int) -> str:
    return f"{count:,} update{'' if count == 1 else 's'}"


def _changes(steps: Mapping[int, Mapping[str, float]]) -> list[str]:
    """Return a line per figure that the first and the last updates, or evaluations, have in common."""
    lines = []
    for names, window in ((_TRAIN, _WINDOW), (_EVAL, 1)):
        for name in names:
            found = [(step, metrics[name]) for step, metrics in sorted(steps.items()) if name in metrics]
            if len(found) < 2:
                continue
            size = min(window, len(found) // 2)
            first, last = found[:size], found[-size:]
            before, after = (sum(value for _, value in part) / size for part in (first, last))
            title = short_name(name).replace("_", " ").replace("/", " ")
            change = f"{value_text(name, before)} -> {value_text(name, after)}"
            lines.append(f"  {title:<25} {change:<20} {_where(first, last)}")
    return lines


def _where(first: list[tuple[int, float]], last: list[tuple[int, float]]) -> str:
    if len(first) > 1:
        return f"(means of updates {first[0][0]} to {first[-1][0]}, and {last[0][0]} to {last[-1][0]})"
    before = "before training" if first[0][0] == 0 else f"after update {first[0][0]}"
    return f"({before}, and after update {last[0][0]})"
