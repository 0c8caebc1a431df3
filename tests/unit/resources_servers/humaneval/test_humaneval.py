"""HumanEval: extracting a program from an answer, and the verdict on it."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Callable

import pytest

from rollyard.resources_servers.base import BadTask
from rollyard.resources_servers.humaneval.app import HumanEval
from rollyard.resources_servers.humaneval.prompt_formats import STOPS, create_params, lm_eval_program
from rollyard.resources_servers.python_answers.environment import ProgramSettings
from rollyard.services.sandbox.sandbox import Sandbox
from rollyard.services.types import Json
from tests.unit.resources_servers.python_answers.grading_programs import failed, humaneval, rows

PROMPT = 'import math\n\ndef helper(x):\n    return x\n\ndef f(x: int) -> int:\n    """One more than x."""\n'
ROW: Json = {
    "prompt": PROMPT,
    "entry_point": "f",
    "test": "def check(candidate):\n    assert candidate(1) == 2\n    assert helper(candidate(2)) == 3\n",
}
FORMS: dict[str, Callable[[Json], str]] = {
    "rest": lambda row: row["canonical_solution"],
    "rest_stripped": lambda row: row["canonical_solution"].strip(),
    "rest_in_a_fence": lambda row: f"```python\n{row['canonical_solution']}```",
    "whole_in_a_fence": lambda row: f"Here:\n```python\n{row['prompt']}{row['canonical_solution']}```\nDone.",
    "whole": lambda row: row["prompt"] + row["canonical_solution"],
    "rest_and_more": lambda row: row["canonical_solution"] + "\n\ndef other(",
    "rest_stripped_in_a_fence": lambda row: f"```python\n{row['canonical_solution'].strip()}\n```",
    "rest_dedented": lambda row: textwrap.dedent(row["canonical_solution"]),
    "rest_below_talk": lambda row: f"Here it is:\n\n{row['canonical_solution']}\n\nThat's all, isn't it.",
    "rest_with_other_blanks": lambda row: row["canonical_solution"].replace("    ", "\u00a0" * 4),
    "rest_behind_a_byte_order_mark": lambda row: "\ufeff" + row["canonical_solution"],
    "rest_with_line_ends_of_windows": lambda row: row["canonical_solution"].replace("\n", "\r\n"),
    "rest_and_a_wrong_call": lambda row: f"{row['canonical_solution']}\n\nprint({row['entry_point']}(1, 2, 3, 4))\n",
    "whole_with_a_future_import": lambda row: (
        f"```python\nfrom __future__ import annotations\n{row['prompt']}{row['canonical_solution']}```"
    ),
    "whole_with_a_wrong_check": lambda row: (
        f"```python\n{row['prompt']}{row['canonical_solution']}\nassert {row['entry_point']}() == 1\n```"
    ),
}


@pytest.mark.parametrize("form", FORMS)
async def test_a_sample_of_the_gold_programs_passes_as(form: str, sandbox: Sandbox) -> None:
    sample = rows("humaneval/HumanEval.jsonl.gz", step=16)
    verdicts = await asyncio.gather(*[humaneval(sandbox, row, FORMS[form](row)) for row in sample])
    assert failed(verdicts) == []


async def test_the_prompt_alone_does_not_pass(sandbox: Sandbox) -> None:
    sample = rows("humaneval/HumanEval.jsonl.gz", step=20)
    verdicts = await asyncio.gather(*[humaneval(sandbox, row, "") for row in sample])
    assert [found.reward for found in verdicts] == [0.0] * len(sample)


async def test_a_wrong_body_is_refused_with_the_line_it_fails_at(sandbox: Sandbox) -> None:
    found = (await humaneval(sandbox, ROW, "    return x * 2")).model_dump()
    assert (found["reward"], found["reason"]) == (0.0, "wrong at: assert helper(candidate(2)) == 3")


async def test_the_tests_use_the_prompts_helpers_and_not_the_answers(sandbox: Sandbox) -> None:
    cheat = f"```python\n{PROMPT}    return 2\n\ndef helper(x):\n    return 3\n```"
    assert (await humaneval(sandbox, ROW, cheat)).reward == 0.0


async def test_a_helper_of_the_answer_is_kept_in_the_lenient_reading(sandbox: Sandbox) -> None:
    found = (await humaneval(sandbox, ROW, "    return more(x)\n\ndef more(x):\n    return x + 1\n")).model_dump()
    assert (found["lenient_score"], found["strict_score"]) == (1.0, 0.0)


async def test_a_check_of_the_answers_own_is_not_the_check(sandbox: Sandbox) -> None:
    cheat = f"```python\n{PROMPT}    return 0\n\ndef check(candidate):\n    pass\n```"
    assert (await humaneval(sandbox, ROW, cheat)).reward == 0.0


def test_strictly_the_answer_ends_at_the_first_stop() -> None:
    assert lm_eval_program("p\n", "    return 1\nprint(2)") == "p\n    return 1"
    assert create_params("lm_eval", PROMPT)["input"][0]["content"] == PROMPT
    assert STOPS == ("\nclass", "\ndef", "\n#", "\nif", "\nprint")


@pytest.mark.parametrize("row", [{}, {**ROW, "entry_point": "f()"}, {**ROW, "test": None}])
def test_a_row_that_cannot_be_tested_is_rejected(row: Json) -> None:
    with pytest.raises(BadTask):
        HumanEval(row, ProgramSettings())


async def test_invalid_tests_are_an_error_of_the_row(sandbox: Sandbox) -> None:
    with pytest.raises(BadTask, match="cannot be compiled"):
        await humaneval(sandbox, {**ROW, "test": "def check("}, "    return x + 1")
