"""Compares the outcomes of graders with the labels: counts of mistakes, by half and by class."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from benchmarks.graders import Outcome, Triple

GRADERS = ("rollyard", "math-verify", "hendrycks")
HALVES = ("dev", "held_out")
ENVIRONMENTS = ("math", "gsm8k")

Count = tuple[int, int]
"""(mistakes, total)."""


def wilson(count: int, of: int) -> tuple[float, float]:
    """Return the 95 % interval of a proportion (Wilson 1927), which is also valid at 0 and 1."""
    z = 1.959964
    share, center = count / of, z * z / (2 * of)
    reach = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    scale = 1 + z * z / of
    return max(0.0, (share + center - reach) / scale), min(1.0, (share + center + reach) / scale)


@dataclass(frozen=True)
class Scored:
    """A triple with the outcome of each grader."""

    triple: Triple
    outcomes: Mapping[str, Outcome]

    def mistaken(self, grader: str) -> bool:
        """Also count a wrong response without a verdict from Rollyard: it is sampled again instead of scored 0."""
        outcome = self.outcomes[grader]
        return (
            outcome != "right"
            if self.triple.right
            else outcome == "right" or (outcome == "failed" and grader == "rollyard")
        )


@dataclass(frozen=True)
class Found:
    triples: Sequence[Triple]
    outcomes: Mapping[str, Sequence[Outcome]]

    @cached_property
    def scored(self) -> list[Scored]:
        return [
            Scored(triple, {grader: self.outcomes[grader][index] for grader in GRADERS})
            for index, triple in enumerate(self.triples)
        ]

    def rates(self) -> Iterator[tuple[str, str, str, Count, Count, int]]:
        """Yield (grader, environment, half, false accepts, false refusals, responses without a verdict)."""
        for grader in GRADERS:
            for environment in ENVIRONMENTS:
                for half in HALVES:
                    rows = [
                        one for one in self.scored if (one.triple.environment, one.triple.half) == (environment, half)
                    ]
                    wrong = [one for one in rows if not one.triple.right]
                    right = [one for one in rows if one.triple.right]
                    accepts = sum(one.outcomes[grader] == "right" for one in wrong)
                    refusals = sum(one.outcomes[grader] != "right" for one in right)
                    failed = sum(one.outcomes[grader] == "failed" for one in rows)
                    yield grader, environment, half, (accepts, len(wrong)), (refusals, len(right)), failed

    def classes(self, right: bool) -> dict[str, list[Scored]]:
        """Return the triples with this label, by class in alphabetical order."""
        chosen = sorted((one for one in self.scored if one.triple.right == right), key=lambda one: one.triple.style)
        styles = dict.fromkeys(one.triple.style for one in chosen)
        return {style: [one for one in chosen if one.triple.style == style] for style in styles}
