"""MATH: competition problems whose answers are formulas. Answers are compared by their mathematical meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollyard.resources_servers.answers.environment import AnswerEnvironment, AnswerSettings
from rollyard.resources_servers.answers.equality import MAX_CHARACTERS
from rollyard.resources_servers.answers.problem_statement import problem_text
from rollyard.resources_servers.base import BadTask, Verdict, Verification, serve
from rollyard.resources_servers.math.prompt_formats import ANSWER_FORMS, gold_answer


class Math(AnswerEnvironment[AnswerSettings]):
    def __init__(self, task: Mapping[str, Any], settings: AnswerSettings) -> None:
        """Parse the row's gold answer. Raises BadTask if it is missing or too long, or if `form` is unknown."""
        super().__init__(task, settings)
        gold = gold_answer(task)
        if gold is None:
            raise BadTask(
                "the row has no gold answer; it needs expected_answer, answer, or a solution with a \\boxed{}"
            )
        if len(gold) > MAX_CHARACTERS:
            raise BadTask(f"the gold answer has {len(gold)} characters; the limit is {MAX_CHARACTERS}")
        form = task.get("form", "chat")
        if form not in ANSWER_FORMS:
            raise BadTask(f"form is {form!r}; expected one of {', '.join(ANSWER_FORMS)}")
        self.gold, self.form, self.problem = gold, ANSWER_FORMS[form], problem_text(task)

    async def verify(self, response: Verification) -> Verdict:
        """Give a reward of 1 for an answer that is equivalent to the gold answer."""
        return self.verdict(await self.grader.grade(self.gold, response, self.form, self.problem), self.gold)


server = serve(Math)
