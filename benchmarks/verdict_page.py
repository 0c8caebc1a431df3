"""The figures of docs/evidence/verdicts.md that `python -m benchmarks.verdict_rates --write` replaces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.graders import Triple
from benchmarks.verdict_scores import GRADERS, Found, Scored, wilson
from rollyard.records.errors import OperatorError
from rollyard.resources_servers.math.app import last_box, same_string

BEGIN, END = "<!-- rates: begin -->", "<!-- rates: end -->"
MAX_LENGTH = 72
"""Maximum characters of an example."""


def write(path: Path, found: Found) -> None:
    """Replace the text between the two markers. Raises OperatorError if a marker is missing."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise OperatorError(f"{path} has no {BEGIN} followed by {END}; expected a page with both markers")
    path.write_text(f"{before}{begin}\n{tables(found)}{end}{after}", encoding="utf-8")


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
    counts = ", ".join(str(sum(one.mistaken(grader) for one in scored)) for grader in GRADERS)
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
