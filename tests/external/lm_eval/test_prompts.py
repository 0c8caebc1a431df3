"""The lm_eval formats of our environments against EleutherAI's: byte-identical prompts, stop strings and scores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from rollyard.records.types import Json
from rollyard.resources_servers.answers.grader import AnswerForm, AnswerGrader
from rollyard.resources_servers.gsm8k import prepare as gsm8k
from rollyard.resources_servers.gsm8k.app import ANSWER_FORMS as GSM8K
from rollyard.resources_servers.gsm8k.app import gold_number
from rollyard.resources_servers.humaneval import prepare as humaneval
from rollyard.resources_servers.math import prepare as math
from rollyard.resources_servers.math.app import ANSWER_FORMS as MATH
from rollyard.resources_servers.math.app import gold_answer, last_box
from rollyard.resources_servers.mbpp import prepare as mbpp
from tests.external.lm_eval.real_tasks import filtered, real_prompts, task
from tests.unit.resources_servers.answers.grading import DATA, grade_all, rows_of

TRAIN, TEST = DATA / "gsm8k/train_first1000.jsonl", DATA / "gsm8k/test.jsonl"
ROWS = 60
"""Rows per comparison, because lm_eval renders its templates slowly."""
LIMIT = ("--limit", str(ROWS))
SUBJECTS = {"algebra": "Algebra", "precalc": "Precalculus"}


@pytest.fixture(scope="module")
def problems() -> dict[str, list[Json]]:
    """MATH by subject, as on the Hub, without answers like [-10,4], which crash lm_eval 0.4.13."""
    columns = ("problem", "level", "type", "solution")
    all_rows = [{key: row[key] for key in columns} for row in rows_of(DATA / "math/math_test5000.jsonl.gz")]
    plain = [row for row in all_rows if not (gold_answer(row) or "").removeprefix(r"\left").startswith("[")]
    return {name: [row for row in plain if row["type"] == subject] for name, subject in SUBJECTS.items()}


def our_prompts(
    main: Callable[[list[str]], None], folder: Path, rows: Path, *options: str
) -> list[tuple[str, list[str]]]:
    """Prompt and stop strings of each row that our preparation writes."""
    main(["--local", str(rows), "--output", str(folder / "rows.jsonl"), "--offline", *options])
    params = [row["responses_create_params"] for row in rows_of(folder / "rows.jsonl")]
    return [(row["input"][0]["content"], orjson.loads(row["metadata"]["extra_body"])["stop"]) for row in params]


def write_rows(path: Path, rows: list[Json]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


@pytest.mark.parametrize("shots", [0, 5])
def test_gsm8k_prompts_equal_those_of_lm_eval_including_the_sampled_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shots: int
) -> None:
    real = task("gsm8k", {"train": rows_of(TRAIN), "test": rows_of(TEST)[:ROWS]}, monkeypatch)
    options = ("--shots", str(shots), "--shots-from", str(TRAIN)) if shots else ()
    assert our_prompts(gsm8k.main, tmp_path, TEST, "--form", "lm_eval", *LIMIT, *options) == real_prompts(real, shots)


@pytest.mark.parametrize("shots", [8, 3])
def test_gsm8k_cot_prompts_equal_those_of_lm_eval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shots: int) -> None:
    real = task("gsm8k_cot", {"train": rows_of(TRAIN)[:1], "test": rows_of(TEST)[:ROWS]}, monkeypatch)
    assert our_prompts(
        gsm8k.main, tmp_path, TEST, "--form", "lm_eval_cot", "--shots", str(shots), *LIMIT
    ) == real_prompts(real, shots)


def test_hendrycks_math_prompts_equal_those_of_lm_eval_with_examples_sampled_per_subject(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problems: dict[str, list[Json]]
) -> None:
    test = write_rows(tmp_path / "test.jsonl", [row for rows in problems.values() for row in rows[:40]])
    train = write_rows(tmp_path / "train.jsonl", [row for rows in problems.values() for row in rows[40:]])
    form = ("--form", "lm_eval_hendrycks", "--shots", "4", "--shots-from", str(train))
    for subject, rows in problems.items():
        real = task(f"hendrycks_math_{subject}", {"train": rows[40:], "test": rows[:40]}, monkeypatch)
        prepared, expected = our_prompts(math.main, tmp_path, test, *form), real_prompts(real, 4)
        assert prepared[:40] == expected or prepared[40:] == expected


def test_filtering_by_level_does_not_change_the_examples_of_other_rows(
    tmp_path: Path, problems: dict[str, list[Json]]
) -> None:
    rows = problems["algebra"]
    test, train = write_rows(tmp_path / "test.jsonl", rows[:40]), write_rows(tmp_path / "train.jsonl", rows[40:])
    form = ("--form", "lm_eval_hendrycks", "--shots", "4", "--shots-from", str(train))
    all_rows, level_5 = (
        our_prompts(math.main, tmp_path, test, *form),
        our_prompts(math.main, tmp_path, test, *form, "--levels", "5"),
    )
    assert level_5 == [prompt for prompt, row in zip(all_rows, rows[:40], strict=True) if row["level"] == "Level 5"]


def test_minerva_math_prompts_equal_those_of_lm_eval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problems: dict[str, list[Json]]
) -> None:
    rows = problems["precalc"][:40]
    real = task("minerva_math_precalc", {"train": rows[:1], "test": rows}, monkeypatch)
    test = write_rows(tmp_path / "test.jsonl", rows)
    assert our_prompts(math.main, tmp_path, test, "--form", "lm_eval_minerva") == real_prompts(real, 4)


def test_mbpp_prompts_equal_those_of_lm_eval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(DATA / "mbpp/mbpp.jsonl.gz")
    columns = ("task_id", "text", "code", "test_list")
    test = [{key: row[key] for key in columns} for row in rows if 11 <= row["task_id"] < 11 + ROWS]
    real = task("mbpp", {"test": test}, monkeypatch)
    assert our_prompts(mbpp.main, tmp_path, DATA / "mbpp/mbpp.jsonl.gz", "--form", "lm_eval", *LIMIT) == real_prompts(
        real, 3
    )


def test_humaneval_prompts_equal_those_of_lm_eval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = DATA / "humaneval/HumanEval.jsonl.gz"
    real = task("humaneval", {"test": rows_of(rows)}, monkeypatch)
    assert our_prompts(humaneval.main, tmp_path, rows, "--form", "lm_eval") == real_prompts(real, 0)


async def strict(golds: list[str], answers: list[str], reading: AnswerForm) -> list[float]:
    """Our strict scores."""
    return [
        float(verdict.strict)
        for verdict in await grade_all(AnswerGrader(None), reading, zip(golds, answers, strict=True))
    ]


@pytest.mark.parametrize(("name", "form"), [("gsm8k", "lm_eval"), ("gsm8k_cot", "lm_eval_cot")])
async def test_the_strict_score_of_gsm8k_equals_lm_evals_strict_match(
    monkeypatch: pytest.MonkeyPatch, name: str, form: str
) -> None:
    rows = rows_of(TEST)[:100]
    golds = [gold_number(row["answer"]) or "" for row in rows]
    wordings = (
        "It is so.\n#### {}",
        "#### {}. #### 7",
        "####{}",
        "#### ${}",
        "The answer is {}.",
        "The answer is ${}.",
        "The answer is {}. The answer is 7.",
        "{} eggs, so The answer is {} eggs.",
        "#### {},\nthe end",
        "#### {}.0",
    )
    answers = [wordings[n % len(wordings)].replace("{}", gold if n % 7 else f"{gold}1") for n, gold in enumerate(golds)]
    real = task(name, {"train": rows[:1], "test": rows}, monkeypatch)
    real_prompts(real, 0)
    assert await strict(golds, answers, GSM8K[form]) == filtered(real, answers)["strict-match"]


async def test_the_strict_score_of_hendrycks_math_equals_lm_evals_exact_match(
    monkeypatch: pytest.MonkeyPatch, problems: dict[str, list[Json]]
) -> None:
    # If a solution ends with two boxes, lm_eval expects only the last one and we expect both.
    rows = [row for params in problems.values() for row in params if last_box(row["solution"]) == gold_answer(row)]
    rows = rows[::4]
    golds = [gold_answer(row) or "" for row in rows]
    wordings = ("${}$", "So ${}$.", r"\boxed{{}}", "{}", "${}$ or $7$", "It is $x$, so ${}$", " {} ", r"$\frac12$")
    answers = [wordings[n % len(wordings)].replace("{}", gold) for n, gold in enumerate(golds)]
    real = task("hendrycks_math_algebra", {"train": rows[:1], "test": rows}, monkeypatch)
    real_prompts(real, 0)
    assert await strict(golds, answers, MATH["lm_eval_hendrycks"]) == filtered(real, answers)["none"]
