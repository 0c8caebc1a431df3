"""GSM8K: grade-school math word problems whose answer is a number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollyard.resources_servers.answers.environment import AnswerEnvironment, AnswerSettings
from rollyard.resources_servers.answers.problem_statement import problem_text
from rollyard.resources_servers.base import BadTask, Verdict, Verification, serve
from rollyard.resources_servers.gsm8k.prompt_formats import ANSWER_FORMS, gold_number


class Gsm8k(AnswerEnvironment):
    def __init__(self, task: Mapping[str, Any], settings: AnswerSettings) -> None:
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
        """Give a reward of 1 for the correct number."""
        return self.verdict(await self.grader.grade(self.gold, response, self.form, self.problem), self.gold)


server = serve(Gsm8k)
