"""The programs of MBPP and HumanEval in the real sandbox; takes a minute."""

from __future__ import annotations

import ast
import asyncio
from itertools import pairwise

import pytest

from rollyard.resources_servers.answers.programs import find, parsed, visible_text
from rollyard.resources_servers.humaneval.app import program
from rollyard.resources_servers.mbpp.app import Mbpp, MbppSettings
from rollyard.services.sandbox.sandbox import Sandbox
from tests.unit.resources_servers.humaneval.test_humaneval import FORMS
from tests.unit.resources_servers.python_answers.grading_programs import failed, humaneval, mbpp, rows

MBPP, HUMANEVAL = "mbpp/mbpp.jsonl.gz", "humaneval/HumanEval.jsonl.gz"


def syntax_tree(code: str) -> ast.Module:
    tree = parsed(code)  # without warnings about code such as "\d"
    assert tree is not None
    return tree


@pytest.mark.smoke
async def test_gold_programs_pass_and_those_of_other_tasks_fail_in_every_isolation_mode(any_sandbox: Sandbox) -> None:
    simple, complete = rows(MBPP, step=90), rows(HUMANEVAL, step=20)
    golds = [mbpp(any_sandbox, row, row["code"]) for row in simple]
    golds += [humaneval(any_sandbox, row, row["canonical_solution"]) for row in complete]
    others = [mbpp(any_sandbox, row, other["code"]) for row, other in pairwise(simple)]
    verdicts = await asyncio.gather(*golds, *others)
    assert [verdict.reward for verdict in verdicts] == [1.0] * len(golds) + [0.0] * len(others)


async def test_every_mbpp_reference_program_passes_all_tests_in_the_format_of_a_base_model(sandbox: Sandbox) -> None:
    answers = [(row, f"{row['code']}\n[DONE]\n\nYou are") for row in rows(MBPP)]
    verdicts = await asyncio.gather(*[mbpp(sandbox, row, text, challenge_tests=True) for row, text in answers])
    assert (len(verdicts), failed(verdicts), failed(verdicts, "strict_score")) == (974, [], [])


def test_every_mbpp_reference_program_is_found_unchanged_in_a_fence() -> None:
    for row in rows(MBPP):
        found = find(f"```python\n{row['code']}\n```", Mbpp(row, MbppSettings()).tests.names)
        gold = visible_text(row["code"])  # with line endings normalized
        assert found and ast.dump(syntax_tree(found.code)) == ast.dump(syntax_tree(gold)), row["task_id"]


async def test_every_humaneval_reference_program_passes(sandbox: Sandbox) -> None:
    forms = list(FORMS.values())  # each row in one of them: the next test compares the programs of all forms
    verdicts = await asyncio.gather(
        *[humaneval(sandbox, row, forms[number % len(forms)](row)) for number, row in enumerate(rows(HUMANEVAL))]
    )
    assert (len(verdicts), failed(verdicts)) == (164, [])


@pytest.mark.parametrize("form", FORMS)
def test_every_humaneval_reference_program_is_found_unchanged_in_the_form(form: str) -> None:
    def function(code: str, name: str) -> str:
        nodes = [node for node in syntax_tree(code).body if isinstance(node, ast.FunctionDef) and node.name == name]
        return ast.dump(nodes[-1])

    for row in rows(HUMANEVAL):
        found = program(row["prompt"], row["entry_point"], FORMS[form](row))
        gold = function(row["prompt"] + row["canonical_solution"], row["entry_point"])
        assert found and function(found.code, row["entry_point"]) == gold, row["task_id"]


async def test_the_program_of_another_task_under_the_right_name_fails(sandbox: Sandbox) -> None:
    dataset = rows(HUMANEVAL)
    pairs = [
        (row, other["prompt"].replace(other["entry_point"], row["entry_point"]) + other["canonical_solution"])
        for row, other in zip(dataset, [*dataset[1:], dataset[0]], strict=True)
    ]
    verdicts = await asyncio.gather(*[humaneval(sandbox, row, f"```python\n{code}```") for row, code in pairs])
    assert [row["task_id"] for (row, _), verdict in zip(pairs, verdicts, strict=True) if verdict.reward] == []


async def test_concurrent_verdicts_equal_sequential_ones(sandbox: Sandbox) -> None:
    dataset = rows(MBPP)[:200]
    mixed = [(row, dataset[number - number % 3]["code"]) for number, row in enumerate(dataset) if number != 122]
    concurrent = await asyncio.gather(*[mbpp(sandbox, row, code) for row, code in mixed])
    sequential = [await mbpp(sandbox, row, code) for row, code in mixed]
    assert [verdict.reward for verdict in concurrent] == [verdict.reward for verdict in sequential]
    assert 40 < sum(verdict.reward for verdict in concurrent) < 160
