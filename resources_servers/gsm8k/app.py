"""GSM8K: grade-school math word problems whose answer is a number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from rollyard.records.verdict_fields import VerdictField
from rollyard.resources_servers.answers.environment import AnswerEnvironment, AnswerSettings
from rollyard.resources_servers.answers.problem_statement import problem_text
from rollyard.resources_servers.base import BadTask, Verdict, Verification, serve
from rollyard.resources_servers.gsm8k.prompt_formats import ANSWER_FORMS, gold_number


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
        """True if the reward depends on the format, in addition to the answer."""
        return bool(self.format_reward or self.format_penalty)


class Gsm8k(AnswerEnvironment[Gsm8kSettings]):
    verdict_fields = (
        *AnswerEnvironment.verdict_fields,
        VerdictField(path="reward_components", role="component"),
    )

    def __init__(self, task: Mapping[str, Any], settings: Gsm8kSettings) -> None:
        """Parse the gold number from the row's `expected_answer`, or from the last line of its `answer`. Raises BadTask
        if neither contains a number, or if `form` is unknown.
        """
        super().__init__(task, settings)
        text = str(task.get("expected_answer", task.get("answer", "")))
        gold = gold_number(text)
        if gold is None:
            raise BadTask(
                f"expected_answer is {text[:80]!r}; expected a number, or a solution whose last line is like #### 18"
            )
        form = task.get("form", "chat")
        if form not in ANSWER_FORMS:
            raise BadTask(f"form is {form!r}; expected one of {', '.join(ANSWER_FORMS)}")
        self.gold, self.form, self.problem = gold, ANSWER_FORMS[form], problem_text(task)

    async def verify(self, response: Verification) -> Verdict:
        """Give a reward of 1 for the correct number, plus or minus the format's part.

        `parse_error` in the verdict is True if there is no answer that `score` could accept.
        """
        grade = await self.grader.grade(self.gold, response, self.form, self.problem)
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


server = serve(Gsm8k)
