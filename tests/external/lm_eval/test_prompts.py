"""The worlds' lm_eval forms against EleutherAI's own: the same prompts byte by byte, stop strings and scores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from rollyard.resources_servers.answers.grader import AnswerForm, AnswerGrader
from rollyard.resources_servers.gsm8k import prepare as gsm8k
from rollyard.resources_servers.gsm8k.prompt_formats import READINGS as GSM8K
from rollyard.resources_servers.gsm8k.prompt_formats import gold_number
from rollyard.resources_servers.humaneval import prepare as humaneval
from rollyard.resources_servers.math import prepare as math
from rollyard.resources_servers.math.hendrycks import last_box
from rollyard.resources_servers.math.prompt_formats import READINGS as MATH
from rollyard.resources_servers.math.prompt_formats import gold_answer
from rollyard.resources_servers.mbpp import prepare as mbpp
from rollyard.services.types import Json
from tests.external.lm_eval.real_tasks import asked, filtered, task
from tests.unit.resources_servers.answers.grading import DATA, judged, rows_of

TRAIN, TEST = DATA / "gsm8k/train_first1000.jsonl", DATA / "gsm8k/test.jsonl"
MOST = 150
"""Rows of a comparison: lm_eval renders its templates slowly."""
LIMIT = ("--limit", str(MOST))
SUBJECTS = {"algebra": "Algebra", "precalc": "Precalculus"}


@pytest.fixture(scope="module")
def problems() -> dict[str, list[Json]]:
    """MATH by subject, as on the hub, without the answers like [-10,4], over which lm_eval 0.4.13 falls."""
    wanted = ("problem", "level", "type", "solution")
    every = [{key: row[key] for key in wanted} for row in rows_of(DATA / "math/math_test5000.jsonl.gz")]
    plain = [row for row in every if not (gold_answer(row) or "").removeprefix(r"\left").startswith("[")]
    return {name: [row for row in plain if row["type"] == subject] for name, subject in SUBJECTS.items()}


def ours(main: Callable[[list[str]], None], folder: Path, rows: Path, *options: str) -> list[tuple[str, list[str]]]:
    """What our prepared rows ask."""
    main(["--local", str(rows), "--output", str(folder / "rows.jsonl"), "--offline", *options])
    found = [row["responses_create_params"] for row in rows_of(folder / "rows.jsonl")]
    return [(one["input"][0]["content"], orjson.loads(one["metadata"]["extra_body"])["stop"]) for one in found]


def written(path: Path, rows: list[Json]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


@pytest.mark.parametrize("shots", [0, 5])
def test_gsm8k_is_asked_as_lm_eval_asks_it_its_draw_of_examples_included(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shots: int
) -> None:
    real = task("gsm8k", {"train": rows_of(TRAIN), "test": rows_of(TEST)[:MOST]}, monkeypatch)
    drawn = ("--shots", str(shots), "--shots-from", str(TRAIN)) if shots else ()
    assert ours(gsm8k.main, tmp_path, TEST, "--form", "lm_eval", *LIMIT, *drawn) == asked(real, shots)


@pytest.mark.parametrize("shots", [8, 3])
def test_gsm8k_cot_is_asked_as_lm_eval_asks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shots: int) -> None:
    real = task("gsm8k_cot", {"train": rows_of(TRAIN)[:1], "test": rows_of(TEST)[:MOST]}, monkeypatch)
    assert ours(gsm8k.main, tmp_path, TEST, "--form", "lm_eval_cot", "--shots", str(shots), *LIMIT) == asked(
        real, shots
    )


def test_hendrycks_math_is_asked_as_lm_eval_asks_it_each_subject_with_a_draw_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problems: dict[str, list[Json]]
) -> None:
    test = written(tmp_path / "test.jsonl", [row for rows in problems.values() for row in rows[:40]])
    train = written(tmp_path / "train.jsonl", [row for rows in problems.values() for row in rows[40:]])
    form = ("--form", "lm_eval_hendrycks", "--shots", "4", "--shots-from", str(train))
    for subject, rows in problems.items():
        real = task(f"hendrycks_math_{subject}", {"train": rows[40:], "test": rows[:40]}, monkeypatch)
        mine, asks = ours(math.main, tmp_path, test, *form), asked(real, 4)
        assert mine[:40] == asks or mine[40:] == asks


def test_rows_left_out_by_level_do_not_shift_the_draws_of_the_others(
    tmp_path: Path, problems: dict[str, list[Json]]
) -> None:
    rows = problems["algebra"]
    test, train = written(tmp_path / "test.jsonl", rows[:40]), written(tmp_path / "train.jsonl", rows[40:])
    form = ("--form", "lm_eval_hendrycks", "--shots", "4", "--shots-from", str(train))
    every, hard = ours(math.main, tmp_path, test, *form), ours(math.main, tmp_path, test, *form, "--levels", "5")
    assert hard == [one for one, row in zip(every, rows[:40], strict=True) if row["level"] == "Level 5"]


def test_minerva_math_is_asked_as_lm_eval_asks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problems: dict[str, list[Json]]
) -> None:
    rows = problems["precalc"][:40]
    real = task("minerva_math_precalc", {"train": rows[:1], "test": rows}, monkeypatch)
    test = written(tmp_path / "test.jsonl", rows)
    assert ours(math.main, tmp_path, test, "--form", "lm_eval_minerva") == asked(real, 4)


def test_mbpp_is_asked_as_lm_eval_asks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(DATA / "mbpp/mbpp.jsonl.gz")
    kept = ("task_id", "text", "code", "test_list")
    test = [{key: row[key] for key in kept} for row in rows if 11 <= row["task_id"] < 11 + MOST]
    real = task("mbpp", {"test": test}, monkeypatch)
    assert ours(mbpp.main, tmp_path, DATA / "mbpp/mbpp.jsonl.gz", "--form", "lm_eval", *LIMIT) == asked(real, 3)


def test_humaneval_is_asked_as_lm_eval_asks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = DATA / "humaneval/HumanEval.jsonl.gz"
    real = task("humaneval", {"test": rows_of(rows)}, monkeypatch)
    assert ours(humaneval.main, tmp_path, rows, "--form", "lm_eval") == asked(real, 0)


async def strict(golds: list[str], said: list[str], reading: AnswerForm) -> list[float]:
    """Our strict scores."""
    return [float(one.strict) for one in await judged(AnswerGrader(None), reading, zip(golds, said, strict=True))]


@pytest.mark.parametrize(("name", "form"), [("gsm8k", "lm_eval"), ("gsm8k_cot", "lm_eval_cot")])
async def test_gsm8ks_strict_score_is_lm_evals_strict_match(
    monkeypatch: pytest.MonkeyPatch, name: str, form: str
) -> None:
    rows = rows_of(TEST)[:400]
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
    said = [wordings[n % len(wordings)].replace("{}", gold if n % 7 else f"{gold}1") for n, gold in enumerate(golds)]
    real = task(name, {"train": rows[:1], "test": rows}, monkeypatch)
    asked(real, 0)
    assert await strict(golds, said, GSM8K[form]) == filtered(real, said)["strict-match"]


async def test_hendrycks_maths_strict_score_is_lm_evals_exact_match(
    monkeypatch: pytest.MonkeyPatch, problems: dict[str, list[Json]]
) -> None:
    # Where a solution ends in two boxes, the harness expects the last one alone, and we expect both.
    rows = [row for found in problems.values() for row in found if last_box(row["solution"]) == gold_answer(row)]
    golds = [gold_answer(row) or "" for row in rows]
    wordings = ("${}$", "So ${}$.", r"\boxed{{}}", "{}", "${}$ or $7$", "It is $x$, so ${}$", " {} ", r"$\frac12$")
    said = [wordings[n % len(wordings)].replace("{}", gold) for n, gold in enumerate(golds)]
    real = task("hendrycks_math_algebra", {"train": rows[:1], "test": rows}, monkeypatch)
    asked(real, 0)
    assert await strict(golds, said, MATH["lm_eval_hendrycks"]) == filtered(real, said)["none"]
