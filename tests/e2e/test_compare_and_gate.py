"""ng_compare and ng_gate on recorded runs: four models' solutions of GSM8K's 1,319 test problems, with the publishers'
own labels (shared/data/gsm8k). The figures are checked against statsmodels.
"""

from __future__ import annotations

import gzip
import re
import shutil
from pathlib import Path

import numpy as np
import orjson
import pytest
from statsmodels.stats.contingency_tables import mcnemar

from rollyard.cli.gate import read_rules
from rollyard.records.data_files import INSTALLED
from rollyard.records.types import Json
from tests.support.commands import Command
from tests.support.rollout_files import grid, write, write_manifest
from tests.support.stacks import SHARED

RECORDED = SHARED / "data" / "gsm8k" / "example_model_solutions.jsonl.gz"
MODELS = [f"{size}_{method}" for size in ("6b", "175b") for method in ("finetuning", "verification")]
SMALL, SMALL_VERIFIED, LARGE, LARGE_VERIFIED = MODELS


@pytest.fixture(scope="module")
def problems() -> list[Json]:
    if not RECORDED.is_file():
        pytest.skip(f"{RECORDED} is not available")
    with gzip.open(RECORDED, "rb") as file:
        return [orjson.loads(line) for line in file]


@pytest.fixture(scope="module")
def recorded(problems: list[Json], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each model as ng_eval leaves it, with `rollouts.jsonl` and its manifest. The orders differ."""
    folder = tmp_path_factory.mktemp("recorded")
    for shift, model in enumerate(MODELS):
        rows = [
            rollout((task + shift) % len(problems), row["question"], row[model]) for task, row in enumerate(problems)
        ]
        path = write(folder / model / "rollouts.jsonl", rows)
        write_manifest(path, len(problems), 1, input_sha256=str(shift), responses_create_params={"temperature": 0})
    return folder


def rollout(task: int, question: str, answer: Json) -> Json:
    text = answer["solution"]
    found = re.search(r"^A: (.*)$", text, re.MULTILINE)
    return {
        "responses_create_params": {"input": question},
        "response": {"output": [], "usage": {"output_tokens": len(text) // 4}},
        "reward": float(answer["is_correct"]),
        "extracted_answer": found[1] if found else None,
        "_ng_task_index": task,
        "_ng_rollout_index": 0,
    }


@pytest.fixture
def run(recorded: Path, monkeypatch: pytest.MonkeyPatch, ng: Command) -> Command:
    monkeypatch.chdir(recorded)
    return ng


def test_is_the_difference_noise_and_how_large_is_it(run: Command, problems: list[Json]) -> None:
    labels = {model: np.array([row[model]["is_correct"] for row in problems]) for model in MODELS}
    done = run("ng_compare", LARGE, SMALL_VERIFIED, SMALL, "+json=true")
    assert done.status == 0, done.err
    found = orjson.loads(done.out)
    assert found["tests"] == 2
    for pair, model in zip(found["pairs"], (SMALL_VERIFIED, SMALL), strict=True):
        (one,) = pair["differences"]
        before, after = labels[LARGE], labels[model]
        table = [[(before & after).sum(), (before & ~after).sum()], [(~before & after).sum(), (~before & ~after).sum()]]
        counts = one["mcnemar"]
        assert [counts[name] for name in ("both", "lost", "gained", "neither")] == [*table[0], *table[1]]
        assert one["p"] == pytest.approx(mcnemar(table, exact=True).pvalue, rel=1e-9)
        assert one["difference"] == pytest.approx(after.mean() - before.mean())
        assert one["interval"]["low"] < one["difference"] < one["interval"]["high"]
        assert len(pair["gained"]["tasks"]) == pair["gained"]["total"] == table[1][0]
        assert pair["lost"]["total"] == table[0][1]


def test_the_report_is_written_for_people(run: Command, tmp_path: Path) -> None:
    done = run("ng_compare", SMALL, LARGE_VERIFIED, "+effect=0.02", f"+output_dir={tmp_path}")
    assert done.status == 0, done.err
    assert f"{LARGE_VERIFIED} minus {SMALL}, over 1,319 " in done.out
    for figure in ("p < 0.0001", "2.00 points", "5,725 tasks (1,319 here)"):
        assert figure in done.out
    assert "| solve_rate | 21.68% | 56.25% | +34.57 points |" in (tmp_path / "comparison.md").read_text()
    assert "<svg" in (tmp_path / "comparison.html").read_text()
    assert orjson.loads((tmp_path / "comparison.json").read_bytes())["effect"] == 0.02


@pytest.mark.parametrize(
    ("runs", "options", "ending"),
    [
        ((SMALL, SMALL_VERIFIED), [], ("GO", 0)),
        ((SMALL_VERIFIED, LARGE), [], ("NO-GO", 1)),
        ((LARGE, SMALL_VERIFIED), ["+min_gain=0.03"], ("INCONCLUSIVE", 3)),
        ((LARGE, LARGE), ["+max_drop=0.001"], ("INCONCLUSIVE", 3)),
        ((SMALL, LARGE), ["+metric=output_tokens", "+max_drop=5"], ("GO", 0)),
    ],
)
def test_may_the_candidate_replace_the_baseline(
    run: Command, recorded: Path, tmp_path: Path, runs: tuple[str, str], options: list[str], ending: tuple[str, int]
) -> None:
    (baseline, candidate), (verdict, status) = runs, ending
    if baseline == candidate:  # the same rollouts under another name
        candidate = str(shutil.copytree(recorded / candidate, tmp_path / "copy"))
    done = run("ng_gate", baseline, candidate, *options, f"+output_json_fpath={tmp_path / 'gate.json'}")
    assert done.status == status, done.out + done.err
    assert done.out.startswith(f"{verdict}: ")
    assert orjson.loads((tmp_path / "gate.json").read_bytes())["decision"] == verdict


def test_rules_in_a_file_must_all_be_met(run: Command, tmp_path: Path) -> None:
    rules = tmp_path / "rules of gate.yaml"
    limits = ("solve_rate, min_gain: 0.05", "cons@1, max_drop: 0.01", "output_tokens, max_drop: 0")
    rules.write_text(f"rules: [{', '.join(f'{{metric: {limit}}}' for limit in limits)}]")
    done = run("ng_gate", SMALL, LARGE_VERIFIED, f"+rules='{rules}'", "+json=true")
    assert done.status == 1
    assert [one["decision"] for one in orjson.loads(done.out)["rules"]] == ["GO", "GO", "NO-GO"]


def test_a_run_with_missing_rollouts_gets_no_verdict(run: Command, recorded: Path, tmp_path: Path) -> None:
    partial = tmp_path / "lr=1e-5" / "rollouts.jsonl"
    partial.parent.mkdir()
    partial.write_bytes(b"".join((recorded / SMALL / "rollouts.jsonl").read_bytes().splitlines(keepends=True)[:-9]))
    write_manifest(partial, 1319, 1, input_sha256="0", responses_create_params={"temperature": 0})
    done = run("ng_gate", SMALL, str(partial.parent))
    assert done.status == 2
    assert "9 of 1,319" in done.err and "lr=1e-5" in done.err and not done.out
    accepted = run("ng_gate", SMALL, str(partial.parent), "+min_coverage=0.99", "+max_drop=0.02")
    assert accepted.status == 0, accepted.out
    assert "9 of the candidate" in accepted.out


def test_an_internal_error_of_the_gate_is_no_verdict(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status 1 would be read as NO-GO."""

    def broken(*given: object, **more: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("rollyard.cli.gate.decide", broken)
    found = run("ng_gate", SMALL, LARGE)
    assert found.status == 2
    assert "ZeroDivisionError: division by zero" in found.err


def test_names_of_files_need_no_quotes_of_hydra(here: Path, ng: Command) -> None:
    files = [write(here / name, grid([1, 0, count], 1)).name for name, count in (("a b.jsonl", 1), ("$(c).jsonl", 0))]
    assert ng("ng_compare", *files).status == 0
    assert ng("ng_gate", *files).status == 3


def test_the_documented_rules_are_valid(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", (INSTALLED / "docs" / "comparing.md").read_text(), re.DOTALL)
    file = tmp_path / "gate.yaml"
    file.write_text(text)
    assert len(read_rules(file)) == 5


@pytest.mark.parametrize(("options", "metric"), [([], "solve_rate"), (["--metric", "reward"], "reward")])
def test_an_effect_applies_to_the_solve_rate_or_the_named_metrics(
    run: Command, options: list[str], metric: str
) -> None:
    shown = run("ng_compare", LARGE, SMALL, "--effect", "0.02", *options)
    (needed,) = [line for line in shown.out.splitlines() if "takes about" in line]
    assert metric in needed
