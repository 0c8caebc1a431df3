"""MBPP: prompts, the names that the tests use, and verdicts."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import orjson
import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.base import BadTask
from rollyard.resources_servers.mbpp.app import Mbpp, MbppSettings, create_params, modules_used, names_used
from rollyard.resources_servers.mbpp.app import time_limit_factor as factor_of
from rollyard.resources_servers.mbpp.prepare import main as prepare
from rollyard.services.sandbox.records import Outcome, SandboxLimits, Trial
from rollyard.services.sandbox.sandbox import Sandbox
from tests.unit.resources_servers.answers.grading import rows_of
from tests.unit.resources_servers.python_answers.grading_programs import example, mbpp, rows
from tests.unit.resources_servers.python_answers.model_texts import FAILING_CODE

ROW: Json = {"test_list": ["assert f(1) == 2", "assert f(2) == 3", "assert f(3) == 4"]}
RIGHT = "def f(x):\n    return x + 1\n"


async def test_a_sample_of_the_gold_programs_passes_and_that_of_another_task_fails(sandbox: Sandbox) -> None:
    sample = rows("mbpp/mbpp.jsonl.gz", step=75)
    golds = [mbpp(sandbox, row, f"```python\n{row['code']}\n```") for row in sample]
    wrong = [mbpp(sandbox, row, other["code"]) for row, other in pairwise(sample)]
    verdicts = await asyncio.gather(*golds, *wrong)
    assert [verdict.reward for verdict in verdicts] == [1.0] * len(golds) + [0.0] * len(wrong)


@pytest.mark.parametrize("task_id", [126, 367, 533, 596, 601, 927])
async def test_gold_programs_pass_when_tests_use_more_than_a_function_and_data(task_id: int, sandbox: Sandbox) -> None:
    (row,) = [row for row in rows("mbpp/mbpp.jsonl.gz") if row["task_id"] == task_id]
    verdict = await mbpp(sandbox, row, row["code"] + "\n[DONE]")
    assert (verdict.reward, verdict.model_dump()["strict_score"]) == (1.0, 1.0), verdict


async def test_the_verdict_reports_the_extracted_program_and_the_reason(sandbox: Sandbox) -> None:
    verdict = (await mbpp(sandbox, ROW, f"```python\n{RIGHT.replace('+ 1', '* 2')}```")).model_dump()
    assert verdict["extraction_method"] == "fenced block"
    assert verdict["extracted_code"].startswith("def f(x):")
    assert (verdict["ending"], verdict["tests_passed"], verdict["tests"]) == ("wrong", 1, 3)
    assert verdict["reason"].endswith("assert f(2) == 3")
    assert "seccomp" in " ".join(verdict["sandbox"]) or "Landlock" in " ".join(verdict["sandbox"])


@pytest.mark.parametrize("name", FAILING_CODE)
async def test_a_right_function_is_accepted_leniently_before_code_that(name: str, sandbox: Sandbox) -> None:
    verdict = (await mbpp(sandbox, ROW, f"{RIGHT}\n{FAILING_CODE[name]}\n")).model_dump()
    assert (verdict["lenient_score"], verdict["strict_score"]) == (1.0, 0.0), verdict
    assert verdict["passed_over"]


async def test_a_program_that_raises_before_defining_its_function_is_wrong(sandbox: Sandbox) -> None:
    verdict = (await mbpp(sandbox, ROW, "import numpy as np\ndef f(x):\n    return np.add(x, 1)\n")).model_dump()
    assert (verdict["lenient_score"], verdict["ending"]) == (0.0, "raised")
    assert verdict["reason"].startswith("NameError") and verdict["reason"].endswith("assert f(1) == 2")
    assert verdict["passed_over"].startswith("ModuleNotFoundError") and "numpy" in verdict["passed_over"]


async def test_an_answer_cannot_replace_a_module_or_builtin_that_the_tests_use(sandbox: Sandbox) -> None:
    row = {"test_list": ["assert math.isclose(f(1), 2.5)"]}
    impostor = "class math:\n    isclose = staticmethod(lambda *a: True)\ndef f(x): return 0\n"
    assert (await mbpp(sandbox, row, impostor)).reward == 0.0
    assert (await mbpp(sandbox, row, "def f(x): return x + 1.5\n")).reward == 1.0
    cheat = "def f(x):\n    return x\ndef set(x):\n    return 0\n"
    assert (await mbpp(sandbox, {"test_list": ["assert set(f([1])) == set([2])"]}, cheat)).reward == 0.0


async def test_the_score_that_is_the_reward_is_a_setting(sandbox: Sandbox) -> None:
    texts = (f"Here you are:\n```python\n{RIGHT}```", f"{RIGHT}[DONE]")
    for score, rewards in (("lenient", [1.0, 1.0]), ("strict", [0.0, 1.0])):
        assert [(await mbpp(sandbox, ROW, text, score=score)).reward for text in texts] == rewards


async def test_an_answer_gets_more_time_only_if_the_gold_program_is_slow(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials: list[Trial] = []

    async def run(trial: Trial) -> Outcome:
        trials.append(trial)
        return await Sandbox.run(sandbox, trial)

    monkeypatch.setattr(sandbox, "run", run)
    for row in (ROW, {**ROW, "gold_cpu_s": 0.6}):
        await mbpp(sandbox, row, RIGHT, limits=SandboxLimits(cpu_s=1))
    assert [trial.times for trial in trials] == [1, 2]


@pytest.mark.parametrize(
    ("task_id", "gold", "limit", "factor"),
    [(1, None, 5, 1), (123, None, 5, 4), (123, None, 30, 1), (None, 2.6, 5, 2), (123, 0.1, 5, 1), ("123", None, 5, 1)],
)
def test_the_limit_is_twice_the_slowest_gold_time_rounded_up_to_whole_limits(
    task_id: object, gold: float | None, limit: int, factor: int
) -> None:
    assert factor_of(task_id, gold, limit) == factor


async def test_challenge_tests_are_run_if_the_setting_enables_them(sandbox: Sandbox) -> None:
    row = {**ROW, "challenge_test_list": ["assert f(-1) == 7"]}
    assert (await mbpp(sandbox, row, RIGHT)).reward == 1.0
    assert (await mbpp(sandbox, row, RIGHT, challenge_tests=True)).reward == 0.0


@pytest.mark.parametrize(
    "row",
    [
        *({}, {"test_list": "assert f(1)"}, {"test_list": ["assert f("]}, {"test_list": []}, {"test_list": ["pass"]}),
        *({**ROW, "gold_cpu_s": gold} for gold in ("3", True, -1.0, 601.0)),
    ],
)
def test_a_row_that_cannot_be_tested_is_rejected(row: Json) -> None:
    with pytest.raises(BadTask, match="gold_cpu_s" if "gold_cpu_s" in row else None):
        Mbpp(row, MbppSettings())


def test_the_names_used_are_those_that_only_the_answer_defines() -> None:
    tests = ["import math\nassert math.isclose(depth(root), len([1]))"]
    assert names_used("root = Node(1)", tests) == ("Node", "depth")
    tests = ["assert calendar(2020)[0] == 1", "assert sys.getsizeof(queue(1)) > 0"]
    assert (names_used("", tests), modules_used("", tests)) == (("calendar", "queue"), ("sys",))


def test_the_lm_eval_form_ends_at_begin_and_has_its_stop_string() -> None:
    shot = {"text": "Add.", "test_list": ["assert a(1, 1) == 2"], "code": "def a(x, y): return x + y"}
    params = create_params("lm_eval", "Double.", ["assert d(1) == 2"], [shot])
    assert params["input"][0]["content"] == (
        "You are an expert Python programmer, and here is your task: Add. Your code should pass these tests:\n\n"
        "assert a(1, 1) == 2\n[BEGIN]\ndef a(x, y): return x + y\n[DONE]\n\n"
        "You are an expert Python programmer, and here is your task: Double. Your code should pass these tests:\n\n"
        "assert d(1) == 2\n[BEGIN]\n"
    )
    assert orjson.loads(params["metadata"]["extra_body"]) == {"stop": ["[DONE]"]}


def test_prepare_writes_the_requested_split_and_form_and_no_file_if_a_row_is_invalid(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    plain = [{**row, "task_id": number} for number, row in zip((10, 11, 12, 600), example("mbpp"), strict=False)]
    source.write_bytes(b"\n".join(map(orjson.dumps, plain)))
    prepare(["--local", str(source), "--output", str(output), "--form", "lm_eval", "--shots", "1"])
    written = rows_of(output)
    assert [row["id"] for row in written] == ["mbpp_11", "mbpp_12"]
    assert written[0]["responses_create_params"]["input"][0]["content"].count("[BEGIN]") == 2
    prepare(["--local", str(source), "--output", str(output)])
    assert rows_of(output)[0]["responses_create_params"]["input"][0]["role"] == "system"
    source.write_bytes(orjson.dumps(plain[0]) + b"\n" + orjson.dumps({"task_id": 12}))
    with pytest.raises(OperatorError, match="row 1"):
        prepare(["--local", str(source), "--output", str(tmp_path / "none.jsonl")])
    assert not (tmp_path / "none.jsonl").exists()
