"""GSM8K: grade-school math word problems whose answer is a number."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import Field, model_validator

from rollyard.records.rewards import VerdictField
from rollyard.records.types import Json
from rollyard.resources_servers.answers import finders
from rollyard.resources_servers.answers.extraction import FoundAnswer
from rollyard.resources_servers.answers.grader import AnswerEnvironment, AnswerForm, AnswerSettings, narrowed
from rollyard.resources_servers.answers.problem_statement import problem_text
from rollyard.resources_servers.answers.prompts import chat, completion, few_shot
from rollyard.resources_servers.answers.quantity import quantity
from rollyard.resources_servers.base import BadTask, Verdict, Verification, serve


class Gsm8kSettings(AnswerSettings):
    """GSM8K's settings. README.md explains how the two parts of the format's reward compare with a correct answer."""

    format_reward: float = Field(default=0.0, ge=0.0, le=1.0)
    """Added to the reward if the text has an answer in the requested format, correct or not."""
    format_penalty: float = Field(default=0.0, ge=0.0, le=1.0)
    """Subtracted from the reward if the text has no answer in the requested format."""

    @model_validator(mode="after")
    def _check_format(self) -> Self:
        if self.format_weight and self.has_format_part:
            raise ValueError(
                "format_weight is set together with format_reward or format_penalty: use one way to reward the format"
            )
        return self

    @property
    def has_format_part(self) -> bool:
        return bool(self.format_reward or self.format_penalty)


class Gsm8k(AnswerEnvironment[Gsm8kSettings]):
    verdict_fields = (*AnswerEnvironment.verdict_fields, VerdictField(path="reward_components", role="component"))

    def __init__(self, task: Mapping[str, Any], settings: Gsm8kSettings) -> None:
        """Raises BadTask without a number in `expected_answer` or at the end of `answer`, and for an unknown `form`."""
        super().__init__(task, settings)
        text = str(task.get("expected_answer", task.get("answer", "")))
        gold = gold_number(text)
        if gold is None:
            raise BadTask(
                f"expected_answer is {text[:80]!r}; expected a number, or a solution whose last line is like #### 18"
            )
        form = task.get("form", "chat")
        if not isinstance(form, str) or form not in ANSWER_FORMS:
            raise BadTask(f"form is {form!r}; expected one of {', '.join(ANSWER_FORMS)}")
        self.gold, self.form, self.problem = gold, ANSWER_FORMS[form], problem_text(task)

    async def verify(self, response: Verification) -> Verdict:
        """`parse_error` in the verdict is True if there is no answer that `score` could accept."""
        grade = await self.shared.grade(self.gold, response, self.form, self.problem)
        verdict = self.verdict(grade, self.gold)
        readable = bool((grade.answer or "").strip(" ,"))  # an empty box is no answer
        in_format = readable and grade.in_requested_format
        accepted = in_format if self.settings.score == "strict" else readable
        fields: dict[str, Any] = {"parse_error": not accepted}
        if self.settings.has_format_part:
            part = self.settings.format_reward if in_format else -self.settings.format_penalty
            fields |= {
                "reward": verdict.reward + part,
                "reward_components": {"correct": verdict.reward, "format": part},
            }
        return verdict.model_copy(update=fields)


SYSTEM = r"First, think step by step. Then put your final answer inside \boxed{...}."
MAX_OUTPUT_TOKENS = 512
_HASHES = re.compile(r"#### (-?[0-9.,]+)")
_ANSWER_IS = re.compile(
    r"The answer is (-?[0-9.,]+)."
)  # as in the harness, the last dot is unescaped and matches any character
_LEADING = re.compile(r"[^\d\-.$]*((?:-\s?)?\$?\s?-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:\s*/\s*\d+)?%?)")
_VARIABLE = re.compile(r"[xyn]\b")
_RANGE = re.compile(r"[$ ]{0,3}[\d.,]{1,40}(?: ?(?:to|-|–|;) ?|, ?(?<=[, ]))\$?\d[^=]*$")


def gold_number(answer: str) -> str | None:
    """Return the number after the last `####` of a GSM8K solution, or `answer` if it is a number, or else None."""
    last = answer.rpartition("####")[2].strip()
    return last if quantity(last) is not None else None


def same_digits(gold: str, answer: str) -> bool:
    """Return whether both are equal, ignoring commas, dollar signs and a final period, as lm-eval does."""

    def bare(text: str) -> str:
        return re.sub(r"[,$]", "", text).removesuffix(".")

    return bare(gold) == bare(answer)


def _first(pattern: re.Pattern[str], method: str, text: str) -> FoundAnswer | None:
    match = pattern.search(text)
    return FoundAnswer(match.group(1), method, match.end(1)) if match else None


def _numbers_in(text: str) -> list[str]:
    """Return the number in each of the sentence's values, from its start or from after its last equals sign."""
    return [_number_in(value) for value in finders.values(text)]


def _number_in(text: str) -> str:
    """Extract `$18` from `9 * 2 = $18 a day`. Return the text unchanged if other words change the number."""
    text = finders.bare_value(text)
    if quantity(text, any_words=True) is not None:
        return text
    last = text.rpartition("=")[2]
    match = _LEADING.match(last)
    if (
        match is None
        or _VARIABLE.match(last, match.end())
        or finders.CHANGED.search(text[: len(text) - len(last) + match.start(1)])
    ):
        return text
    return text if _RANGE.match(text, match.start(1)) and last == text else match[1]


_LENIENT = (
    finders.boxed_or_tagged,
    narrowed(finders.hashes, _numbers_in),
    narrowed(finders.minerva, _numbers_in),
    narrowed(finders.phrased, _numbers_in),
    finders.number,
)
ANSWER_FORMS = {
    "chat": AnswerForm(stops=(), strict=finders.boxed, lenient=_LENIENT),
    "lm_eval": AnswerForm(
        stops=("Question:", "</s>", "<|im_end|>"),
        strict=lambda text: _first(_HASHES, "hashes", text),
        lenient=_LENIENT,
        matches=same_digits,
    ),
    "lm_eval_cot": AnswerForm(
        stops=("Q:", "</s>", "<|im_end|>"),
        strict=lambda text: _first(_ANSWER_IS, "answer_is", text),
        lenient=_LENIENT,
        matches=same_digits,
    ),
}


def create_params(form: str, question: str, shots: Sequence[tuple[str, str]] = (), system: str = SYSTEM) -> Json:
    """Build the request parameters. `shots` are (question, answer) pairs, used only in the lm-eval formats."""
    if form == "chat":
        return chat(question, system)
    template = "Question: {}\nAnswer:" if form == "lm_eval" else "Q: {}\nA:"
    return completion(few_shot(template, shots, question), ANSWER_FORMS[form].stops, MAX_OUTPUT_TOKENS)


server = serve(Gsm8k)
