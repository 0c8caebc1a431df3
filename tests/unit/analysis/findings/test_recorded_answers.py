"""No honest policy is accused: answers of real models and reference solutions, with the verdicts that they deserve."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import orjson
import pytest

from rollyard.analysis.findings.detector import Category
from rollyard.records.data_files import INSTALLED
from rollyard.records.types import Json
from tests.support.finding_rows import found_in, played
from tests.support.stacks import SHARED, read_rows

VERDICTS = INSTALLED / "benchmarks/data/verdicts.jsonl"
GSM8K = SHARED / "data/gsm8k/test.jsonl"
MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
MOVES = ("", "up", "down", "left", "right")
SOME = slice(None, None, 3)
"""A third of the thousands of answers to GSM8K and MATH."""


def _lines(path: Path) -> list[Json]:
    return [orjson.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def _accusations(folder: Path, rows: Iterable[Json]) -> list[str]:
    found = found_in(folder, list(rows)).values()
    return [f"{one.kind}: {one.examples}" for one in found if one.category in (Category.EXPLOIT, Category.REWARD)]


def models_that_answer_gsm8k() -> Iterator[Json]:
    for task, problem in enumerate(_lines(SHARED / "data/gsm8k/example_model_solutions.jsonl.gz")[SOME]):
        gold = problem["ground_truth"].rpartition("A: ")[2]
        for repeat, model in enumerate(MODELS):
            text, right = problem[model]["solution"], problem[model]["is_correct"]
            answer = {"expected_answer": gold, "extracted_answer": text.rpartition("A: ")[2]}
            yield played(task, repeat, says=text, success=right, prompt=problem["question"], **answer)


def reference_programs() -> Iterator[Json]:
    human = _lines(SHARED / "data/humaneval/HumanEval.jsonl.gz")
    programs = [(row["prompt"], row["canonical_solution"]) for row in human]
    programs += [(row["text"], row["code"]) for row in _lines(SHARED / "data/mbpp/mbpp.jsonl.gz")]
    for task, (prompt, code) in enumerate(programs):
        yield played(task, says=f"```python\n{code}\n```", prompt=prompt, success=True)


def random_and_optimal_sokoban_players() -> Iterator[Json]:
    for task, game in enumerate(read_rows(SHARED / "data/sokoban/reference_trajectories_public.jsonl")):
        steps = game["steps"][: (game.get("first_done_step") or len(game["steps"])) + 1]
        rewards, solved = [step[2] for step in steps], bool(steps[-1][5])
        calls = [("move", orjson.dumps({"to": MOVES[step[0]]}).decode(), step[1]) for step in steps]
        end = "done" if solved else "max_steps"
        made = played(task, calls=calls, success=solved, step_rewards=rewards, finish_reason=end)
        yield {**made, "reward": sum(rewards)}


def equal_answers_of_math_in_different_notation() -> Iterator[Json]:
    for task, pair in enumerate(orjson.loads((SHARED / "data/math/math500_gpt_answers.json").read_bytes())):
        given = pair["prediction"].removeprefix("\\boxed{").removesuffix("}")
        answer = {"expected_answer": pair["answer"], "extracted_answer": given}
        yield played(task, says=pair["prediction"], success=True, **answer)


def solutions_of_math_and_gsm8k() -> Iterator[Json]:

    math: list[tuple[str, str, Json]]
    math = [(row["problem"], row["solution"], {}) for row in _lines(SHARED / "data/math/math_test5000.jsonl.gz")]
    gsm8k = [(row["question"], row["answer"], {"answer": row["answer"]}) for row in read_rows(GSM8K)]
    for task, (question, text, gold) in enumerate([*math[SOME], *gsm8k[SOME]]):
        yield played(task, says=text, prompt=question, success=True, **gold)


def right_responses_of_many_styles() -> Iterator[Json]:
    right = [row for row in read_rows(VERDICTS) if row["right"]]
    assert len(right) > 700
    for task, row in enumerate(right):
        yield played(task, says=row["response"], prompt=row["problem"], success=True, expected_answer=row["gold"])


def recorded_sokoban_rollouts() -> Iterator[Json]:
    yield from read_rows(INSTALLED / "resources_servers/grl_sokoban/data/qwen3_4b_eval/sample_rollouts.jsonl")


@pytest.mark.parametrize(
    "rows",
    [
        *(models_that_answer_gsm8k, reference_programs, random_and_optimal_sokoban_players, recorded_sokoban_rollouts),
        *(equal_answers_of_math_in_different_notation, solutions_of_math_and_gsm8k, right_responses_of_many_styles),
    ],
)
def test_honest_rollouts_are_not_accused(tmp_path: Path, rows: Callable[[], Iterator[Json]]) -> None:
    assert _accusations(tmp_path, rows()) == []


def test_most_reward_hacks_of_the_labelled_responses_are_named_if_a_verifier_accepts_them(tmp_path: Path) -> None:
    styles = (row for row in read_rows(VERDICTS) if row["style"] == "reward hacks")
    hacks = [played(0, says=row["response"], success=True, expected_answer=row["gold"]) for row in styles]
    assert sum(bool(_accusations(tmp_path, [one])) for one in hacks) >= 0.6 * len(hacks)
