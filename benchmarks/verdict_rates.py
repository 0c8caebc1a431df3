"""How often a grader of mathematical answers is wrong: ours, math-verify and the string equality of MATH.

The triples of `data/verdicts.jsonl` have the labels of a careful reader. A false accept is a wrong answer that is
rewarded, a false refusal a right one that is not. `--write docs/verdicts.md` puts the tables into that page.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.graders import Outcome, Triple, hendrycks, math_verify, ours
from benchmarks.tables import table, verdict
from benchmarks.verdict_page import write
from benchmarks.verdict_scores import GRADERS, HALVES, Found, Scored, wilson
from rollyard.services.errors import OperatorError
from rollyard.services.io.jsonl import iter_jsonl, refuse

TRIPLES = Path(__file__).parent / "data" / "verdicts.jsonl"
TARGETS = {"false accepts": 3 / 270, "false refusals": 15 / 361}
"""Of ours, on the half of MATH's triples that was kept from those who repaired it."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="every tenth triple")
    parser.add_argument("--write", type=Path, help="page whose tables are replaced by those of this run")
    chosen = parser.parse_args(arguments)
    if chosen.quick and chosen.write:
        raise OperatorError("--write needs all of the triples; drop --quick")
    triples = read(TRIPLES)[:: 10 if chosen.quick else 1]
    found = asyncio.run(grade(triples))
    show(found)
    if chosen.write:
        write(chosen.write, found)
        print(f"wrote the tables into {chosen.write}")


def read(path: Path) -> list[Triple]:
    return [Triple.model_validate(line.value) for line in iter_jsonl(path, refuse(path))]


async def grade(triples: Sequence[Triple]) -> Found:
    """What each grader says of each triple; one grader after the other, so that none starves another."""
    said: dict[str, list[Outcome]] = {}
    for name in GRADERS:
        begun = time.monotonic()
        match name:
            case "ours":
                said[name] = await ours(triples)
            case "math-verify":
                said[name] = await math_verify(triples)
            case _:
                said[name] = [hendrycks(triple) for triple in triples]
        print(f"{name}: {len(triples)} responses in {time.monotonic() - begun:.0f} s", flush=True)
    return Found(triples, said)


def show(found: Found) -> None:
    """The tables, and what our grader gets wrong."""
    rows = [
        (grader, f"{environment} {half.replace('_', '-')}", *(_rate(*count) for count in (accepts, refusals)), failed)
        for grader, environment, half, accepts, refusals, failed in found.rates()
    ]
    columns = ("grader", "triples", "false accepts", "false refusals", "no verdict")
    table("Mistakes, with 95 % intervals (Wilson)", columns, rows)
    for grader, environment, half, accepts, refusals, _ in found.rates():
        if (grader, environment, half) == ("ours", "math", "held_out"):
            for (name, target), (count, of) in zip(TARGETS.items(), (accepts, refusals), strict=True):
                print(f"{name} of ours on math held-out: target {100 * target:.1f} %, {verdict(count <= target * of)}")
    for right, title in (
        (False, "Wrong answers that are not scored 0, by class"),
        (True, "Right answers refused, by class"),
    ):
        rows = [
            (
                style,
                len(scored),
                *(_share(scored, half) for half in HALVES),
                *(_mistakes(scored, who) for who in GRADERS[1:]),
            )
            for style, scored in found.classes(right).items()
        ]
        table(title, ("class", "of", "ours dev", "ours held-out", *GRADERS[1:]), rows)
    wrong = [scored for scored in found.scored if scored.mistaken("ours")]
    print(f"\nWhat ours gets wrong, {len(wrong)} of {len(found.scored)}:")
    for scored in wrong:
        triple = scored.triple
        said = "no verdict" if scored.said["ours"] == "failed" else "refused" if triple.right else "accepted"
        tail = " ".join(triple.response[-60:].split())
        print(f"  {triple.id} ({triple.half}, {triple.style}): {said}; gold {triple.gold!r}, ends {tail!r}")


def _rate(count: int, of: int) -> str:
    if not of:
        return "-"
    low, high = wilson(count, of)
    return f"{count} of {of}: {100 * count / of:.1f} % ({100 * low:.1f}-{100 * high:.1f})"


def _share(scored: Sequence[Scored], half: str) -> str:
    chosen = [one for one in scored if one.triple.half == half]
    return f"{_mistakes(chosen, 'ours')} of {len(chosen)}" if chosen else "-"


def _mistakes(scored: Sequence[Scored], grader: str) -> int:
    return sum(one.mistaken(grader) for one in scored)


if __name__ == "__main__":
    main()
