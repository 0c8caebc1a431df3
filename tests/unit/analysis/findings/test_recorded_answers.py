"""No honest policy is accused: answers of real models and reference solutions, with the verdicts that they deserve."""

from __future__ import annotations

import gzip
from pathlib import Path

import orjson

from rollyard.analysis.findings.detector import Category
from rollyard.records.search_path import INSTALLED
from rollyard.records.types import Json
from tests.support.finding_rows import found_in, played
from tests.support.stacks import SHARED, read_rows

VERDICTS = INSTALLED / "benchmarks/data/verdicts.jsonl"
MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
MOVES = ("", "up", "down", "left", "right")
SOME = slice(None, None, 3)
"""A third of the thousands of answers to GSM8K and MATH."""


def _lines(path: Path) -> list[Json]:
    return [orjson.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def _accusations(folder: Path, rows: list[Json]) -> list[str]:
    found = found_in(folder, rows).values()
    return [f"{one.kind}: {one.examples}" for one in found if one.category in (Category.EXPLOIT, Category.REWARD)]


def test_models_that_answer_gsm8k_are_not_accused(tmp_path: Path) -> None:
    rows = []
    for task, problem in enumerate(_lines(SHARED / "data/gsm8k/example_model_solutions.jsonl.gz")[SOME]):
        gold = problem["ground_truth"].rpartition("A: ")[2]
        for repeat, model in enumerate(MODELS):
            text = problem[model]["solution"]
            answer = {"expected_answer": gold, "extracted_answer": text.rpartition("A: ")[2]}
            right = problem[model]["is_correct"]
            rows.append(played(task, repeat, says=text, success=right, prompt=problem["question"], **answer))
    assert _accusations(tmp_path, rows) == []


def test_reference_programs_are_not_accused(tmp_path: Path) -> None:
    programs = [
        (row["prompt"], row["canonical_solution"]) for row in _lines(SHARED / "data/humaneval/HumanEval.jsonl.gz")
    ]
    programs += [(row["text"], row["code"]) for row in _lines(SHARED / "data/mbpp/mbpp.jsonl.gz")]
    rows = [
        played(task, says=f"```python\n{code}\n```", prompt=prompt, success=True)
        for task, (prompt, code) in enumerate(programs)
    ]
    assert _accusations(tmp_path, rows) == []


def test_random_and_optimal_sokoban_players_are_not_accused(tmp_path: Path) -> None:
    rows = []
    for task, game in enumerate(read_rows(SHARED / "data/sokoban/reference_trajectories_public.jsonl")):
        steps = game["steps"][: (game.get("first_done_step") or len(game["steps"])) + 1]
        rewards, solved = [step[2] for step in steps], bool(steps[-1][5])
        calls = [("move", orjson.dumps({"to": MOVES[step[0]]}).decode(), step[1]) for step in steps]
        made = played(
            task, calls=calls, success=solved, step_rewards=rewards, finish_reason="done" if solved else "max_steps"
        )
        rows.append({**made, "reward": sum(rewards)})
    assert _accusations(tmp_path, rows) == []


def test_equal_answers_of_math_in_different_notation_are_not_accused(tmp_path: Path) -> None:
    rows = []
    for task, pair in enumerate(orjson.loads((SHARED / "data/math/math500_gpt_answers.json").read_bytes())):
        given = pair["prediction"].removeprefix("\\boxed{").removesuffix("}")
        rows.append(
            played(task, says=pair["prediction"], success=True, expected_answer=pair["answer"], extracted_answer=given)
        )
    assert _accusations(tmp_path, rows) == []


def test_solutions_of_math_and_gsm8k_are_not_accused(tmp_path: Path) -> None:
    data = SHARED / "data"
    math = [(row["problem"], row["solution"], "") for row in _lines(data / "math/math_test5000.jsonl.gz")]
    gsm8k = [(row["question"], row["answer"], row["answer"]) for row in read_rows(data / "gsm8k/test.jsonl")]
    rows = [
        played(task, says=text, prompt=question, success=True, **({"answer": gold} if gold else {}))
        for task, (question, text, gold) in enumerate([*math[SOME], *gsm8k[SOME]])
    ]
    assert _accusations(tmp_path, rows) == []


def test_right_responses_of_many_styles_are_not_accused(tmp_path: Path) -> None:
    rows = [
        played(task, says=row["response"], prompt=row["problem"], success=True, expected_answer=row["gold"])
        for task, row in enumerate(read_rows(VERDICTS))
        if row["right"]
    ]
    assert len(rows) > 700
    assert _accusations(tmp_path, rows) == []


def test_most_reward_hacks_of_the_labelled_responses_are_named_if_a_verifier_accepts_them(tmp_path: Path) -> None:
    hacks = [row for row in read_rows(VERDICTS) if row["style"] == "reward hacks"]
    named = [
        bool(_accusations(tmp_path, [played(0, says=row["response"], success=True, expected_answer=row["gold"])]))
        for row in hacks
    ]
    assert sum(named) >= 0.6 * len(hacks)


def test_recorded_sokoban_rollouts_are_not_accused(tmp_path: Path) -> None:
    path = INSTALLED / "resources_servers/grl_sokoban/data/qwen3_4b_eval/sample_rollouts.jsonl"
    assert _accusations(tmp_path, read_rows(path)) == []
