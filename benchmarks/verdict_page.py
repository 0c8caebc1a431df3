"""The tables of docs/verdicts.md that `python -m benchmarks.verdict_rates --write` replaces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.graders import Triple
from benchmarks.verdict_scores import GRADERS, Found, Scored, wilson
from rollyard.resources_servers.math.hendrycks import last_box, same_string
from rollyard.services.errors import OperatorError

BEGIN, END = "<!-- rates: begin -->", "<!-- rates: end -->"
LONGEST = 72
"""Characters of an answer that is shown as an example."""


def write(path: Path, found: Found) -> None:
    """Replace what is between the two marks. Raises OperatorError where they are missing."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise OperatorError(f"{path} has no {BEGIN} followed by {END}; expected the page whose tables are replaced")
    path.write_text(f"{before}{begin}\n{tables(found)}{end}{after}", encoding="utf-8")


def tables(found: Found) -> str:
    """The tables in Markdown. math-verify's timeouts run by the clock: its counts may differ on a busy machine."""
    lines = [
        "| grader | environment | half | false accepts | false refusals | no verdict |",
        "|---|---|---|---|---|---:|",
    ]
    for grader, environment, half, accepts, refusals, failed in found.rates():
        cells = (grader, environment, half.replace("_", "-"), _rate(*accepts), _rate(*refusals), str(failed))
        lines.append(f"| {' | '.join(cells)} |")
    for right, title in ((True, "Right answers"), (False, "Wrong answers")):
        said = "refused" if right else "did not score 0"
        lines += [
            "",
            f"**{title}**: how many of each class a grader {said}, both halves together.",
            "",
            f"| class | example | gold | of | {' | '.join(GRADERS)} |",
            f"|---|---|---|---:|{'---:|' * len(GRADERS)}",
        ]
        lines += [_class(style, scored) for style, scored in found.classes(right).items()]
    return "\n".join(lines) + "\n"


def _class(style: str, scored: Sequence[Scored]) -> str:
    # A row with a note shows what its class is about.
    best = min((one.triple for one in scored), key=lambda one: (len(_example(one)) > LONGEST, not one.note))
    example = _code(_example(best)) + (f" ({best.note})" if best.note else "")
    counts = [str(sum(one.mistaken(grader) for one in scored)) for grader in GRADERS]
    return f"| {' | '.join((style, example, _code(best.gold), str(len(scored)), *counts))} |"


def _example(triple: Triple) -> str:
    """What is in the last box; the line around it where that is the gold answer, and the end of a text without one."""
    answer = last_box(triple.response)
    if answer is None:
        text = " ".join(triple.response.split()) or "(nothing)"
        return text if len(text) <= LONGEST else f"... {text[4 - LONGEST :].partition(' ')[2]}"
    if same_string(triple.gold, answer):
        lines = reversed(triple.response.splitlines())
        return next((line.strip() for line in lines if "\\boxed" in line), answer)
    return " ".join(answer.split()) or "\\boxed{}"


def _code(text: str) -> str:
    # A backtick would end the code; a bar ends the cell, even in code, unless it is escaped.
    return f"`{text.replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def _rate(count: int, of: int) -> str:
    if not of:
        return "-"
    low, high = wilson(count, of)
    return f"{count} of {of} ({100 * low:.1f} to {100 * high:.1f} %)"
