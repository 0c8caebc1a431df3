"""Findings read the answers from the fields that an environment declares, whatever their names are."""

from __future__ import annotations

from pathlib import Path

from rollyard import Environment, Verdict, VerdictField
from rollyard.records.types import Json
from rollyard.resources_servers.environment import EnvironmentSettings, Verification
from rollyard.testing import play, says
from tests.support.finding_rows import found_in


class Guesses(Environment[EnvironmentSettings]):
    """Its verifier accepts every number. Its fields have names that no other environment uses."""

    user_template = "{question}"
    verdict_fields = (
        VerdictField(path="verdict.solution", role="expected"),
        VerdictField(path="verdict.guess", role="extracted"),
        VerdictField(path="grader_timeout", role="limit"),
    )

    async def verify(self, response: Verification) -> Verdict:
        guess = response.text.strip() or None
        right = guess is not None and guess.isdigit()
        verdict = {"solution": self.task["solution"], "guess": guess}
        return Verdict(reward=float(right), success=right, verdict=verdict, grader_timeout=guess == "slow")


async def guessed(task: int, answer: str) -> Json:
    rollout = await play(Guesses, {"question": "What is 6 * 7?", "solution": "42"}, turns=[says(answer)])
    return {**rollout.row, "_ng_task_index": task, "_ng_rollout_index": 0}


async def test_answers_and_limits_are_read_from_the_fields_that_the_environment_declares(tmp_path: Path) -> None:
    right, unread = await guessed(0, "42"), {"verdict": {"solution": "42", "guess": None}}
    found = found_in(tmp_path, [right, await guessed(1, "9000")])
    assert [(one.task, one.repeat) for one in found["answer_far_from_gold"].examples] == [(1, 0)]
    assert found_in(tmp_path, [right, {**(await guessed(1, "?")), **unread}])["no_answer"].count == 1
    assert found_in(tmp_path, [right, await guessed(1, "slow")])["verdict_timeouts"].count == 1
    assert found_in(tmp_path, [await guessed(task, "7") for task in range(12)])["same_answer"].tasks == 12
