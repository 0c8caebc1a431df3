"""Complete datasets in the real sandbox; takes minutes."""

from __future__ import annotations

import asyncio

import pytest

from rollyard.services.sandbox.sandbox import Sandbox
from tests.unit.resources_servers.humaneval.test_humaneval import FORMS
from tests.unit.resources_servers.python_answers.grading_programs import failed, humaneval, mbpp, rows


async def test_every_mbpp_reference_program_passes_its_challenge_tests(sandbox: Sandbox) -> None:
    dataset = rows("mbpp/mbpp.jsonl.gz")
    verdicts = await asyncio.gather(
        *[mbpp(sandbox, row, f"```python\n{row['code']}\n```", challenge_tests=True) for row in dataset]
    )
    assert (len(verdicts), failed(verdicts)) == (974, [])


async def test_every_mbpp_reference_program_passes_in_the_format_of_a_base_model(sandbox: Sandbox) -> None:
    dataset = rows("mbpp/mbpp.jsonl.gz")
    verdicts = await asyncio.gather(*[mbpp(sandbox, row, f"{row['code']}\n[DONE]\n\nYou are") for row in dataset])
    assert (len(verdicts), failed(verdicts, "strict_score")) == (974, [])


@pytest.mark.parametrize("form", FORMS)
async def test_every_humaneval_reference_program_passes(form: str, sandbox: Sandbox) -> None:
    verdicts = await asyncio.gather(
        *[humaneval(sandbox, row, FORMS[form](row)) for row in rows("humaneval/HumanEval.jsonl.gz")]
    )
    assert (len(verdicts), failed(verdicts)) == (164, [])


async def test_the_program_of_another_task_under_the_right_name_fails(sandbox: Sandbox) -> None:
    dataset = rows("humaneval/HumanEval.jsonl.gz")
    pairs = [
        (row, other["prompt"].replace(other["entry_point"], row["entry_point"]) + other["canonical_solution"])
        for row, other in zip(dataset, [*dataset[1:], dataset[0]], strict=True)
    ]
    verdicts = await asyncio.gather(*[humaneval(sandbox, row, f"```python\n{code}```") for row, code in pairs])
    assert [row["task_id"] for (row, _), verdict in zip(pairs, verdicts, strict=True) if verdict.reward] == []


async def test_500_concurrent_verdicts_equal_sequential_ones(sandbox: Sandbox) -> None:
    dataset = rows("mbpp/mbpp.jsonl.gz")[:500]
    mixed = [(row, dataset[number - number % 3]["code"]) for number, row in enumerate(dataset)]
    concurrent = await asyncio.gather(*[mbpp(sandbox, row, code) for row, code in mixed])
    sequential = [await mbpp(sandbox, row, code) for row, code in mixed]
    assert [verdict.reward for verdict in concurrent] == [verdict.reward for verdict in sequential]
    assert 100 < sum(verdict.reward for verdict in concurrent) < 400
