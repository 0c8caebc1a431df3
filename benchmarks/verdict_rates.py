"""Error rates of graders of mathematical answers: Rollyard's, math-verify, and the string equality of MATH.

The triples of `data/verdicts.jsonl` are labelled by a careful reader. A false accept is a wrong answer that is
rewarded; a false refusal is a right answer that is not. `--write docs/evidence/verdicts.md` updates
the figures of that page.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.graders import Outcome, Triple, hendrycks, math_verify, rollyard
from benchmarks.tables import table, verdict, write_between
from rollyard.records.errors import OperatorError
from rollyard.records.jsonl import iter_jsonl, refuse
from rollyard.resources_servers.math.app import last_box, same_string

GRADERS = ("rollyard", "math-verify", "hendrycks")
HALVES = ("dev", "held_out")
ENVIRONMENTS = ("math", "gsm8k")

Count = tuple[int, int]
"""(mistakes, total)."""
TRIPLES = Path(__file__).parent / "data" / "verdicts.jsonl"
TARGETS = {"false accepts": 3 / 270, "false refusals": 15 / 361}
"""Maximum error rates of Rollyard's grader on the held-out half of the MATH triples."""
BEGIN, END = "<!-- rates: begin -->", "<!-- rates: end -->"
MAX_LENGTH = 72
"""Maximum characters of an example."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smoke test: every fiftieth triple")
    parser.add_argument("--write", type=Path, help="page whose tables to replace")
    chosen = parser.parse_args(arguments)
    if chosen.quick and chosen.write:
        raise OperatorError("--write needs all triples; drop --quick")
    triples = read(TRIPLES)[:: 50 if chosen.quick else 1]
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


def write(path: Path, found: Found) -> None:
    write_between(path, BEGIN, END, tables(found))


def tables(found: Found) -> str:
    """Return the tables in Markdown. math-verify's timeouts are in wall time: its counts may differ on a busy host."""
    lines = [
        "| grader | environment | half | false accepts | false refusals | no verdict |",
        "|---|---|---|---|---|---:|",
    ]
    for grader, environment, half, accepts, refusals, failed in found.rates():
        cells = (grader, environment, half.replace("_", "-"), _rate(*accepts), _rate(*refusals), str(failed))
        lines.append(f"| {' | '.join(cells)} |")
    for right, title in ((True, "Right answers"), (False, "Wrong answers")):
        error = "refused" if right else "not scored 0"
        classes = found.classes(right)
        mistaken = {name: scored for name, scored in classes.items() if _is_hard(scored)}
        lines += ["", f"**{title}** {error} by {', '.join(GRADERS)}, both halves together:", ""]
        lines += [_class(style, scored) for style, scored in mistaken.items()]
        if easy := [style for style in classes if style not in mistaken]:
            lines += ["", f"No mistake of rollyard and math-verify: {', '.join(easy)}."]
    return "\n".join(lines) + "\n"


def _is_hard(scored: Sequence[Scored]) -> bool:
    return any(one.mistaken(grader) for one in scored for grader in ("rollyard", "math-verify"))


def _class(style: str, scored: Sequence[Scored]) -> str:
    # Prefer an example with a note, because the note explains the class.
    example_triple = min(
        (one.triple for one in scored), key=lambda one: (len(_example(one)) > MAX_LENGTH, not one.note)
    )
    example = _code(_example(example_triple)) + (f" ({example_triple.note})" if example_triple.note else "")
    counts = ", ".join(str(_mistakes(scored, grader)) for grader in GRADERS)
    return f"- {style}: {counts} of {len(scored)}; {example} for {_code(example_triple.gold)}"


def _example(triple: Triple) -> str:
    """Return the last box's content; its line if that is the gold answer; the end of a text without a box."""
    answer = last_box(triple.response)
    if answer is None:
        text = " ".join(triple.response.split()) or "(nothing)"
        return text if len(text) <= MAX_LENGTH else f"... {text[4 - MAX_LENGTH :].partition(' ')[2]}"
    if same_string(triple.gold, answer):
        lines = reversed(triple.response.splitlines())
        return next((line.strip() for line in lines if "\\boxed" in line), answer)
    return " ".join(answer.split()) or "\\boxed{}"


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39))}`"  # a backtick would end the code


def _rate(count: int, of: int) -> str:
    if not of:
        return "-"
    low, high = wilson(count, of)
    return f"{count} of {of} ({100 * low:.1f} to {100 * high:.1f} %)"


def _share(scored: Sequence[Scored], half: str) -> str:
    chosen = [one for one in scored if one.triple.half == half]
    return f"{_mistakes(chosen, 'rollyard')} of {len(chosen)}" if chosen else "-"


def _mistakes(scored: Sequence[Scored], grader: str) -> int:
    return sum(one.mistaken(grader) for one in scored)


if __name__ == "__main__":
    main()
