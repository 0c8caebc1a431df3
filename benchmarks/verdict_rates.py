"""Error rates of graders of mathematical answers: Rollyard's, math-verify, and the string equality of MATH.

The triples of `data/verdicts.jsonl` are labelled by a careful reader. A false accept is a wrong answer that is
rewarded; a false refusal is a right answer that is not. `--write docs/evidence/verdicts.md` updates
the figures of that page.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.graders import Outcome, Triple, hendrycks, math_verify, rollyard
from benchmarks.tables import table, verdict
from benchmarks.verdict_page import write
from benchmarks.verdict_scores import GRADERS, HALVES, Found, Scored, wilson
from rollyard.records.errors import OperatorError
from rollyard.records.jsonl import iter_jsonl, refuse

TRIPLES = Path(__file__).parent / "data" / "verdicts.jsonl"
TARGETS = {"false accepts": 3 / 270, "false refusals": 15 / 361}
"""Maximum error rates of Rollyard's grader on the held-out half of the MATH triples."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smoke test: every tenth triple")
    parser.add_argument("--write", type=Path, help="page whose tables to replace")
    chosen = parser.parse_args(arguments)
    if chosen.quick and chosen.write:
        raise OperatorError("--write needs all triples; drop --quick")
    triples = read(TRIPLES)[:: 10 if chosen.quick else 1]
    found = asyncio.run(grade(triples))
    show(found)
    if chosen.write:
        write(chosen.write, found)
        print(f"wrote the tables to {chosen.write}")


def read(path: Path) -> list[Triple]:
    return [Triple.model_validate(line.value) for line in iter_jsonl(path, refuse(path))]


async def grade(triples: Sequence[Triple]) -> Found:
    """Run each grader on each triple, sequentially, so that graders do not compete for the CPU."""
    outcomes: dict[str, list[Outcome]] = {}
    for name in GRADERS:
        started = time.monotonic()
        match name:
            case "rollyard":
                outcomes[name] = await rollyard(triples)
            case "math-verify":
                outcomes[name] = await math_verify(triples)
            case _:
                outcomes[name] = [hendrycks(triple) for triple in triples]
        print(f"{name}: {len(triples)} responses in {time.monotonic() - started:.0f} s", flush=True)
    return Found(triples, outcomes)


def show(found: Found) -> None:
    """Print the tables, and the mistakes of Rollyard's grader."""
    rows = [
        (grader, f"{environment} {half.replace('_', '-')}", *(_rate(*count) for count in (accepts, refusals)), failed)
        for grader, environment, half, accepts, refusals, failed in found.rates()
    ]
    columns = ("grader", "triples", "false accepts", "false refusals", "no verdict")
    table("Mistakes, with 95 % intervals (Wilson)", columns, rows)
    for grader, environment, half, accepts, refusals, _ in found.rates():
        if (grader, environment, half) == ("rollyard", "math", "held_out"):
            for (name, target), (count, of) in zip(TARGETS.items(), (accepts, refusals), strict=True):
                print(
                    f"{name} of Rollyard on held-out MATH: target {100 * target:.1f} %, {verdict(count <= target * of)}"
                )
    for right, title in (
        (False, "Wrong answers that are not scored 0, by class"),
        (True, "Right answers refused, by class"),
    ):
        rows = [
            (
                style,
                len(scored),
                *(_share(scored, half) for half in HALVES),
                *(_mistakes(scored, grader) for grader in GRADERS[1:]),
            )
            for style, scored in found.classes(right).items()
        ]
        table(title, ("class", "of", "rollyard dev", "rollyard held-out", *GRADERS[1:]), rows)
    wrong = [scored for scored in found.scored if scored.mistaken("rollyard")]
    print(f"\nMistakes of Rollyard's grader, {len(wrong)} of {len(found.scored)}:")
    for scored in wrong:
        triple = scored.triple
        error = "no verdict" if scored.outcomes["rollyard"] == "failed" else "refused" if triple.right else "accepted"
        tail = " ".join(triple.response[-60:].split())
        print(f"  {triple.id} ({triple.half}, {triple.style}): {error}; gold {triple.gold!r}, ends {tail!r}")


def _rate(count: int, of: int) -> str:
    if not of:
        return "-"
    low, high = wilson(count, of)
    return f"{count} of {of}: {100 * count / of:.1f} % ({100 * low:.1f}-{100 * high:.1f})"


def _share(scored: Sequence[Scored], half: str) -> str:
    chosen = [one for one in scored if one.triple.half == half]
    return f"{_mistakes(chosen, 'rollyard')} of {len(chosen)}" if chosen else "-"


def _mistakes(scored: Sequence[Scored], grader: str) -> int:
    return sum(one.mistaken(grader) for one in scored)


if __name__ == "__main__":
    main()
