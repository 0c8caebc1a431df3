"""GSM8K: grade-school word problems whose answer is a number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollyard.resources_servers.answers.environment import AnswerEnvironment, AnswerSettings
from rollyard.resources_servers.answers.problem_statement import problem_text
from rollyard.resources_servers.base import BadTask, Verdict, Verification, serve
from rollyard.resources_servers.gsm8k.prompt_formats import ANSWER_FORMS, gold_number


class Gsm8k(AnswerEnvironment):
    """One grade-school word problem."""

    def __init__(self, task: Mapping[str, Any], settings: AnswerSettings) -> None:
        """Parse the row's gold number: `expected_answer`, or the last line of `answer`. Raises BadTask."""
        super().__init__(task, settings)
        text = str(task.get("expected_answer", task.get("answer", "")))
        gold = gold_number(text)
        if gold is None:
            raise BadTask(f"expected_answer is {text[:80]!r}; expected a number, or a solution that ends with #### 18")
        form = task.get("form", "chat")
        if form not in ANSWER_FORMS:
            raise BadTask(f"form is {form!r}; expected one of {', '.join(ANSWER_FORMS)}")
        self.gold, self.form, self.problem = gold, ANSWER_FORMS[form], problem_text(task)

    async def verify(self, response: Verification) -> Verdict:
        """Reward 1 for the correct number."""
        return self.verdict(await self.grader.grade(self.gold, response, self.form, self.problem), self.gold)


server = serve(Gsm8k)
