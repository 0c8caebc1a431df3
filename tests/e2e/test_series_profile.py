"""ng_reward_profile +series=true on the files of several steps."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from rollyard.records.types import Json
from tests.support.commands import Command
from tests.support.rollout_files import write
from tests.support.step_rows import step_rows

COUNTS = {0: {1: 0, 2: 4, 3: 1}, 25: {3: 2, 2: 2, 1: 2}, 100: {1: 4, 2: 0, 3: 3}}
"""Solved rollouts of each task by step. The files are named out of order, and their tasks have different indexes."""


@pytest.fixture
def files(here: Path) -> list[Path]:
    return [write(here / f"step_{step}.jsonl", rows_of(step)) for step in (25, 100, 0)]


def rows_of(step: int) -> list[Json]:
    tokens = {"type": "message", "content": [], "generation_log_probs": [-2.0 + step / 100] * 3}
    rows = step_rows(COUNTS[step], reward_components={"format": step / 100})
    return [{**row, "response": {**row["response"], "output": [tokens]}} for row in rows]


def listed(files: list[Path]) -> str:
    return f"+jsonl_fpath=[{','.join(map(str, files))}]"


def test_the_report_of_a_series_has_curves_tasks_and_what_changed(
    files: list[Path], tmp_path: Path, ng: Command
) -> None:
    done = ng("ng_reward_profile", listed(files), "+series=true", f"+output_dir={tmp_path / 'out'}")
    assert done.status == 0, done.err
    assert "from 0 to 100" in done.out and "2 better, 1 worse" in done.out
    report = orjson.loads((tmp_path / "out" / "profile.json").read_bytes())
    assert [step["step"] for step in report["series"]["steps"]] == [0, 25, 100]
    assert [run["name"] for run in report["runs"]] == ["step_0", "step_100"]
    page = (tmp_path / "out" / "profile.html").read_text()
    for title in ("Solve rate", "Mean reward", "Reward: format", "Output tokens", "Entropy, estimated"):
        assert f"<figcaption>{title}: " in page
    assert page.count('class="cell"') == 9
    assert re.search(r"forgotten.* 0 .* 100", page)
    assert re.search(r"Entropy, estimated: 2 .* 0, 1 .* 100", page), "positive, and its interval in order"


def test_the_steps_can_be_stated(tmp_path: Path, ng: Command) -> None:
    files = [write(tmp_path / f"{name}.jsonl", step_rows({1: count})) for name, count in (("late", 4), ("early", 0))]
    done = ng("ng_reward_profile", listed(files), "+steps=[300,0]", f"+output_dir={tmp_path / 'out'}")
    assert done.status == 0 and "from 0 to 300" in done.out
    assert "1 better, 0 worse" in done.out
