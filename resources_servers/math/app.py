"""MATH: competition problems whose answers are formulas. Answers are compared by their mathematical meaning."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from rollyard.records.types import Json
from rollyard.resources_servers.answers import finders
from rollyard.resources_servers.answers.equality import MAX_CHARACTERS
from rollyard.resources_servers.answers.extraction import FoundAnswer
from rollyard.resources_servers.answers.grader import AnswerEnvironment, AnswerForm, AnswerSettings, narrowed
from rollyard.resources_servers.answers.problem_statement import problem_text
from rollyard.resources_servers.answers.prompts import chat, completion, few_shot
from rollyard.resources_servers.base import BadTask, Verdict, Verification, serve


class Math(AnswerEnvironment[AnswerSettings]):
    def __init__(self, task: Mapping[str, Any], settings: AnswerSettings) -> None:
        """Parse the row's gold answer. Raises BadTask if it is missing or too long, or if `form` is unknown."""
        super().__init__(task, settings)
        gold = gold_answer(task)
        if gold is None:
            reason = "the row has no gold answer; it needs expected_answer, answer, or a solution with a \\boxed{}"
            raise BadTask(reason)
        if len(gold) > MAX_CHARACTERS:
            raise BadTask(f"the gold answer has {len(gold)} characters; the limit is {MAX_CHARACTERS}")
        form = task.get("form", "chat")
        if not isinstance(form, str) or form not in ANSWER_FORMS:
            raise BadTask(f"form is {form!r}; expected one of {', '.join(ANSWER_FORMS)}")
        self.gold, self.form, self.problem = gold, ANSWER_FORMS[form], problem_text(task)

    async def verify(self, response: Verification) -> Verdict:
        return self.verdict(await self.shared.grade(self.gold, response, self.form, self.problem), self.gold)


# Implements the MATH dataset's string comparison and the answer extraction of lm-eval's hendrycks_math.

_DROPPED = re.compile(r"\n|\\!|\\left|\\right|\^\{\\circ\}|\^\\circ|\\\$|\\%|%")
_UNIT = re.compile(r"\\text\{ .*")
_ROOT = re.compile(r"\\sqrt(?!\{)(.)")
_FRACTION = re.compile(r"\\frac(?!\{)(.)(?:(?!\{)(.)|(?=\{))")
_BARE = re.compile(r"\\sqrt(?:$|\\sqrt)|\\frac\s*(?:$|\\frac)")
_SLASH = re.compile(r"(-?\d+)/(-?\d+)")


def between_dollars(text: str) -> FoundAnswer | None:
    """Return the text between the first and the last dollar sign, or the whole text if it has fewer than two."""
    first, last = text.find("$"), text.rfind("$")
    if first < last:
        return FoundAnswer(text[first + 1 : last], "between_dollars", last + 1)
    return FoundAnswer(text, "whole_text", len(text)) if text.strip() else None


def last_box(solution: str) -> str | None:
    r"""Return the answer that lm-eval shows in a few-shot example: the argument of the solution's last `\boxed`."""
    bare = solution.rfind("\\boxed ")
    if bare >= 0:
        return solution[bare + len("\\boxed ") :].partition("$")[0]
    start = solution.rfind("\\boxed{")
    if start < 0:
        return None
    depth, first = 0, start + len("\\boxed{")
    for position in range(first - 1, len(solution)):
        depth += {"{": 1, "}": -1}.get(solution[position], 0)
        if depth == 0:
            return solution[first:position]
    return None


def same_string(gold: str, answer: str) -> bool:
    """Return whether both normalize to the same string. If either cannot be normalized, compare them verbatim."""
    try:
        return normalized(gold) == normalized(answer)
    except ValueError:
        return gold == answer


def normalized(text: str) -> str:
    r"""Normalize like MATH's original code. Raises ValueError where it fails: two units, a \sqrt without argument."""
    text = _DROPPED.sub("", text.replace(r"\\", "\\").replace("tfrac", "frac").replace("dfrac", "frac"))
    if text.count(r"\text{ ") > 1:
        raise ValueError(f"found two units in {text!r}")
    text = _UNIT.sub("", text)
    text = re.sub(r"(^|[ {])\.", r"\g<1>0.", text)
    left, equals, right = text.partition("=")
    if equals and len(left) <= 2 and "=" not in right:  # `x = 5`
        text = right
    if _BARE.search(text):
        raise ValueError(f"found \\sqrt or \\frac without an argument in {text!r}")
    text = _ROOT.sub(r"\\sqrt{\1}", text).replace(" ", "")
    text = _FRACTION.sub(lambda match: rf"\frac{{{match[1]}}}" + (f"{{{match[2]}}}" if match[2] else ""), text)
    if text == "0.5":
        return r"\frac{1}{2}"
    slash = _SLASH.fullmatch(text)
    return rf"\frac{{{slash[1]}}}{{{slash[2]}}}" if slash else text


SYSTEM = r"Think step by step, and put your final answer inside \boxed{...}."
MAX_OUTPUT_TOKENS = 1024
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
MAX_CONCLUSION_LENGTH = 200
_CONCLUDING = re.compile(
    r"\b(?:therefore|thus|hence|so|finally|consequently|in conclusion|we (?:get|have|find|obtain)|which gives"
    r"|this gives)\b[,:]?\s*(?:we (?:get|have|find|obtain|conclude that)\b[,:]?\s*|that\b\s*)?",
    re.IGNORECASE,
)


def gold_answer(row: Mapping[str, Any]) -> str | None:
    """Return the row's `expected_answer`, `answer`, or the last box in its `solution`; None if it has none."""
    for key in ("expected_answer", "answer", "solution"):
        value = row.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if isinstance(value, str) and value.strip():
            # Any of these keys may contain a complete solution.
            box = finders.boxed(value)
            if box is not None and box.whole:
                return box.text or None
            return value.strip() if key != "solution" else None
    return None


def whole(text: str) -> FoundAnswer | None:
    """Return the text if it is a single line with at most three words, and therefore probably just the answer."""
    line = text.strip()
    if not line or "\n" in line or len(_WORD.findall(line)) > 3:
        return None
    return FoundAnswer(line, "whole_text", len(text))


def concluded(text: str) -> FoundAnswer | None:
    """Return the conclusion at the end, such as `x = 5` in `Therefore, x = 5.`, if it is short enough."""
    text = text.rstrip()
    begin = max(text.rfind("\n"), text.rfind(". "), len(text) - MAX_CONCLUSION_LENGTH, 0)
    lead = deque(_CONCLUDING.finditer(text, begin), 1)
    return found._replace(end=len(text)) if lead and (found := whole(text[lead[0].end() :])) else None


def _values(text: str) -> list[str]:
    return [finders.bare_value(value) for value in finders.values(text)]


_LENIENT = (
    finders.boxed_or_tagged,
    narrowed(finders.minerva, _values),
    narrowed(finders.hashes, _values),
    narrowed(finders.phrased, _values),
    narrowed(concluded, _values),
    finders.dollars,
    narrowed(whole, _values),
    finders.number,
)
ANSWER_FORMS = {
    "chat": AnswerForm(stops=(), strict=finders.boxed, lenient=_LENIENT),
    "lm_eval_hendrycks": AnswerForm(stops=("Problem:",), strict=between_dollars, lenient=_LENIENT, matches=same_string),
    "lm_eval_minerva": AnswerForm(
        stops=("Problem:",),
        strict=narrowed(finders.minerva, _values),
        # A base model continues after its answer, so the requested sentence takes precedence over a box.
        lenient=(narrowed(finders.minerva, _values), *_LENIENT),
    ),
}


def worked(form: str, row: Mapping[str, Any]) -> tuple[str, str]:
    """Convert a solved row to a few-shot example, with only the answer for hendrycks_math and the full solution
    otherwise.

    Raises ValueError if the row is not a solved problem, or if its solution has no box and hendrycks_math needs the
    answer.
    """
    if not row.get("problem") or not row.get("solution"):
        reason = f"a few-shot example has the fields {', '.join(row) or '(none)'}; expected problem and solution"
        raise ValueError(reason)
    problem, solution = str(row["problem"]), str(row["solution"])
    if form != "lm_eval_hendrycks":
        return problem, solution
    answer = last_box(solution)
    if answer is None:
        raise ValueError(f"the solution to {problem[:60]!r} does not contain a \\boxed{{}} answer")
    return problem, answer


def create_params(form: str, problem: str, shots: Sequence[tuple[str, str]] = (), system: str = SYSTEM) -> Json:
    """Build the request parameters. `shots` are (problem, solution) pairs, used only in the lm-eval formats."""
    if form == "chat":
        return chat(problem, system)
    template = "Problem:\n{}\n\nSolution:" if form == "lm_eval_minerva" else "Problem: {}\nAnswer:"
    return completion(few_shot(template, shots, problem), ANSWER_FORMS[form].stops, MAX_OUTPUT_TOKENS)


server = serve(Math)
