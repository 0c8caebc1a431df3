"""HumanEval: extracting a program from an answer, and the verdict on it."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Callable

import pytest

from rollyard.records.types import Json
from rollyard.resources_servers.base import BadTask
from rollyard.resources_servers.humaneval.app import STOPS, create_params, lm_eval_program
from rollyard.services.sandbox.sandbox import Sandbox
from tests.unit.resources_servers.python_answers.grading_programs import failed, humaneval, rows

PROMPT = 'import math\n\ndef helper(x):\n    return x\n\ndef f(x: int) -> int:\n    """One more than x."""\n'
ROW: Json = {
    "prompt": PROMPT,
    "entry_point": "f",
    "test": "def check(candidate):\n    assert candidate(1) == 2\n    assert helper(candidate(2)) == 3\n",
}
FORMS: dict[str, Callable[[Json], str]] = {
    "body": lambda row: row["canonical_solution"],
    "body_stripped": lambda row: row["canonical_solution"].strip(),
    "body_in_a_fence": lambda row: f"```python\n{row['canonical_solution']}```",
    "complete_in_a_fence": lambda row: f"Here:\n```python\n{row['prompt']}{row['canonical_solution']}```\nDone.",
    "complete": lambda row: row["prompt"] + row["canonical_solution"],
    "body_and_more": lambda row: row["canonical_solution"] + "\n\ndef other(",
    "body_stripped_in_a_fence": lambda row: f"```python\n{row['canonical_solution'].strip()}\n```",
    "body_dedented": lambda row: textwrap.dedent(row["canonical_solution"]),
    "body_after_prose": lambda row: f"Here it is:\n\n{row['canonical_solution']}\n\nThat's all, isn't it.",
    "body_with_non_breaking_spaces": lambda row: row["canonical_solution"].replace("    ", "\u00a0" * 4),
    "body_after_a_byte_order_mark": lambda row: "\ufeff" + row["canonical_solution"],
    "body_with_windows_line_endings": lambda row: row["canonical_solution"].replace("\n", "\r\n"),
    "body_and_a_wrong_call": lambda row: f"{row['canonical_solution']}\n\nprint({row['entry_point']}(1, 2, 3, 4))\n",
    "complete_with_a_future_import": lambda row: (
        f"```python\nfrom __future__ import annotations\n{row['prompt']}{row['canonical_solution']}```"
    ),
    "complete_with_a_wrong_check": lambda row: (
        f"```python\n{row['prompt']}{row['canonical_solution']}\nassert {row['entry_point']}() == 1\n```"
    ),
}


@pytest.mark.parametrize("form", FORMS)
async def test_a_sample_of_the_gold_programs_passes_in_the_form(form: str, sandbox: Sandbox) -> None:
    sample = rows("humaneval/HumanEval.jsonl.gz")[list(FORMS).index(form) :: 50]
    verdicts = await asyncio.gather(*[humaneval(sandbox, row, FORMS[form](row)) for row in sample])
    assert failed(verdicts) == []


async def test_a_wrong_body_is_reported_with_the_failing_line(sandbox: Sandbox) -> None:
    verdict = (await humaneval(sandbox, ROW, "    return x * 2")).model_dump()
    assert (verdict["reward"], verdict["ending"]) == (0.0, "wrong")
    assert verdict["reason"].endswith("assert helper(candidate(2)) == 3")


@pytest.mark.parametrize(
    "cheat",
    [
        "",
        f"```python\n{PROMPT}    return 2\n\ndef helper(x):\n    return 3\n```",
        f"```python\n{PROMPT}    return 0\n\ndef check(candidate):\n    pass\n```",
    ],
)
async def test_the_tests_use_the_prompts_helpers_and_their_own_check_and_not_the_answers(
    cheat: str, sandbox: Sandbox
) -> None:
    assert (await humaneval(sandbox, ROW, cheat)).reward == 0.0


async def test_a_helper_of_the_answer_is_kept_in_the_lenient_score(sandbox: Sandbox) -> None:
    verdict = (await humaneval(sandbox, ROW, "    return more(x)\n\ndef more(x):\n    return x + 1\n")).model_dump()
    assert (verdict["lenient_score"], verdict["strict_score"]) == (1.0, 0.0)


def test_the_strict_program_ends_at_the_first_stop_string() -> None:
    assert lm_eval_program("p\n", "    return 1\nprint(2)") == "p\n    return 1"
    assert create_params("lm_eval", PROMPT)["input"][0]["content"] == PROMPT
    assert STOPS == ("\nclass", "\ndef", "\n#", "\nif", "\nprint")


@pytest.mark.parametrize("odd", [{"prompt": None}, {"entry_point": "f()"}, {"test": None}, {"test": "def check("}])
async def test_a_row_that_cannot_be_tested_is_rejected(odd: Json, sandbox: Sandbox) -> None:
    with pytest.raises(BadTask):
        await humaneval(sandbox, {**ROW, **odd}, "    return x + 1")
