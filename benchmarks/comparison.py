"""Compares this checkout with another commit: both are measured in turn, and the ratio is that of each pair.

Other load on the host changes CPU times by 5 to 10 %, so one pair says little, and neither does a bare median. The
interval of a ratio holds the median of 95 % of the samples drawn from the pairs. A figure has become worse if its whole
interval is above the limit after all pairs, in two comparisons. It ends early if its whole interval is below the limit,
and after a few more pairs if its median is.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.commands import COMMANDS, BenchmarkError, installed
from benchmarks.tables import table

LIMIT = 1.03
DRAWS = 2000

Sample = Mapping[str, float]
"""What one measurement found, by process or command; the figure is the sum."""
Measure = Callable[[int], Sample]
"""Measures one checkout once. Both measurements of a pair get its number, from which they make the same input."""
Prepare = Callable[[Path, Path], AbstractContextManager[Measure]]
"""Starts what a checkout needs, given the folder of its commands and an empty folder."""


@dataclass(frozen=True)
class Figure:
    """Something to measure. Less is better."""

    name: str
    unit: str
    prepare: Prepare


@dataclass(frozen=True)
class Plan:
    """How many pairs to measure of each figure."""

    pairs: int = 3
    """They suffice if the whole interval is below the limit."""
    more_pairs: int = 5
    """These suffice if the median is below it."""
    most_pairs: int = 12
    """How many otherwise: no figure is worse after fewer."""
    limit: float = LIMIT


@dataclass
class Comparison:
    """The samples of one figure: of the other commit, and of this checkout."""

    figure: Figure
    titles: tuple[str, str] = ("before", "now")
    before: list[Sample] = field(default_factory=list)
    now: list[Sample] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [sum(now.values()) / sum(before.values()) for before, now in zip(self.before, self.now, strict=True)]

    def ended(self, plan: Plan) -> bool:
        """Return whether enough was measured."""
        pairs = len(self.now)
        if not plan.pairs <= pairs < plan.most_pairs:
            return pairs >= plan.most_pairs
        suffices = statistics.median(self.ratios) if pairs >= plan.more_pairs else interval(self.ratios)[1]
        return suffices <= plan.limit

    def is_worse(self, limit: float) -> bool:
        return interval(self.ratios)[0] > limit

    def show(self, limit: float) -> None:
        """Print the medians and the verdict."""
        parts = list(self.now[0])
        kinds = zip(self.titles, (self.before, self.now), strict=True)
        cells = [
            [
                title,
                statistics.median(sum(sample.values()) for sample in samples),
                *(statistics.median(sample[part] for sample in samples) for part in parts),
            ]
            for title, samples in kinds
        ]
        head = ["", self.figure.unit, *parts]
        if len(parts) == 1:
            head, cells = head[:-1], [row[:-1] for row in cells]
        low, high = interval(self.ratios)
        verdict = f"ABOVE {limit:g}" if low > limit else "met" if high <= limit else "met, but not with certainty"
        ratio = f"{statistics.median(self.ratios):.3f} times ({low:.3f} to {high:.3f}), {len(self.now)} pairs"
        table(self.figure.name, head, cells, f"{ratio}, target <={limit:g}: {verdict}")


def compare(
    figure: Figure, before: Path, folder: Path, plan: Plan, titles: tuple[str, str] = ("before", "now")
) -> Comparison:
    """Measure the commands in the folder `before` and those of this checkout in turn."""
    found = Comparison(figure, titles)
    with ExitStack() as stack:
        measures = []
        for name, commands in (("before", before), ("now", COMMANDS)):
            (folder / name).mkdir(parents=True)
            measures.append(stack.enter_context(figure.prepare(commands, folder / name)))
        sides = list(zip((found.before, found.now), measures, strict=True))
        while not found.ended(plan):
            number = len(found.now)
            # Which one is first changes, so that neither gains from it.
            for samples, measure in sides if number % 2 else reversed(sides):
                samples.append(measure(number))
    return found


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the median."""
    source = random.Random(1)
    medians = sorted(statistics.median(source.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
    return medians[DRAWS // 40], medians[-1 - DRAWS // 40]


def against(revision: str, figures: Sequence[Figure], plan: Plan) -> int:
    """Compare with a commit, and print each figure when it is known.

    Return the exit status: 1 if a figure has become worse, 2 if one could not be measured.
    """
    started = time.monotonic()
    worse = []
    try:
        with tempfile.TemporaryDirectory() as temporary, installed(revision) as before:
            print(f"{revision[:12]} is installed ({time.monotonic() - started:.0f} s)", flush=True)
            for number, figure in enumerate(figures):
                for attempt in ("first", "second"):  # new processes: one may be slow for its whole life
                    comparison = compare(figure, before, Path(temporary) / attempt / str(number), plan)
                    comparison.show(plan.limit)
                    if not comparison.is_worse(plan.limit):
                        break
                else:
                    worse.append(figure.name)
    except BenchmarkError as error:
        print(error, file=sys.stderr)
        return 2
    outcome = f"above {plan.limit:g} times {revision[:12]}: {'; '.join(worse)}" if worse else "nothing became slower"
    print(f"\n{time.monotonic() - started:.0f} s; {outcome}")
    return int(bool(worse))


def warmed_up(measure: Measure) -> Measure:
    """Measure once, for which files are read and modules compiled, without the result."""
    measure(-1)
    return measure
