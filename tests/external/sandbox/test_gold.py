"""The whole data sets against the real sandbox: minutes, not seconds."""

from __future__ import annotations

import asyncio

import pytest

from rollyard.services.sandbox.sandbox import Sandbox
from tests.unit.resources_servers.humaneval.test_humaneval import FORMS
from tests.unit.resources_servers.python_answers.grading_programs import failed, humaneval, mbpp, rows


async def test_every_mbpp_gold_program_passes_its_challenge_tests_too(sandbox: Sandbox) -> None:
    found = rows("mbpp/mbpp.jsonl.gz")
    verdicts = await asyncio.gather(
        *[mbpp(sandbox, row, f"```python\n{row['code']}\n```", challenge_tests=True) for row in found]
    )
    assert (len(verdicts), failed(verdicts)) == (974, [])


async def test_every_mbpp_gold_program_passes_as_a_base_model_writes_it(sandbox: Sandbox) -> None:
    found = rows("mbpp/mbpp.jsonl.gz")
    verdicts = await asyncio.gather(*[mbpp(sandbox, row, f"{row['code']}\n[DONE]\n\nYou are") for row in found])
    assert (len(verdicts), failed(verdicts, "strict_score")) == (974, [])


@pytest.mark.parametrize("form", FORMS)
async def test_every_humaneval_gold_program_passes_as(form: str, sandbox: Sandbox) -> None:
    verdicts = await asyncio.gather(
        *[humaneval(sandbox, row, FORMS[form](row)) for row in rows("humaneval/HumanEval.jsonl.gz")]
    )
    assert (len(verdicts), failed(verdicts)) == (164, [])


async def test_another_tasks_program_under_the_right_name_is_refused(sandbox: Sandbox) -> None:
    found = rows("humaneval/HumanEval.jsonl.gz")
    pairs = [
        (row, other["prompt"].replace(other["entry_point"], row["entry_point"]) + other["canonical_solution"])
        for row, other in zip(found, [*found[1:], found[0]], strict=True)
    ]
    verdicts = await asyncio.gather(*[humaneval(sandbox, row, f"```python\n{code}```") for row, code in pairs])
    assert [row["task_id"] for (row, _), got in zip(pairs, verdicts, strict=True) if got.reward] == []


async def test_500_verdicts_at_once_are_those_of_one_after_another(sandbox: Sandbox) -> None:
    found = rows("mbpp/mbpp.jsonl.gz")[:500]
    mixed = [(row, found[number - number % 3]["code"]) for number, row in enumerate(found)]
    crowd = await asyncio.gather(*[mbpp(sandbox, row, code) for row, code in mixed])
    alone = [await mbpp(sandbox, row, code) for row, code in mixed]
    assert [got.reward for got in crowd] == [got.reward for got in alone]
    assert 100 < sum(got.reward for got in crowd) < 400
