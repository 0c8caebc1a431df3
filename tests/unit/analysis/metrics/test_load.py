from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from rollyard.analysis.metrics.columns import FLOATS, INTS, MAX_CATEGORIES
from rollyard.analysis.metrics.load import load, read
from rollyard.records.errors import RunError
from tests.support.reading_pools import read_in_threads
from tests.support.rollout_files import grid, load_run, random_rows, row, solved, write, write_failures

NUMBERS = (*INTS, *FLOATS)


@pytest.mark.parametrize(("part", "workers"), [(57, 1), (400, 1), (3000, 2)])
def test_the_size_of_parts_and_the_number_of_processes_do_not_change_the_result(
    tmp_path: Path, part: int, workers: int
) -> None:
    path = write(tmp_path / "x.jsonl", random_rows(2, 5))
    seen: list[int] = []
    found = read(path, workers=workers, part=part, progress=seen.append)
    whole = read(path).columns
    assert all(np.array_equal(getattr(found.columns, name), getattr(whole, name), equal_nan=True) for name in NUMBERS)
    names = [[columns.end.names[code] for code in columns.end.codes] for columns in (found.columns, whole)]
    assert names[0] == names[1] and found.columns.stages.keys() == whole.stages.keys()
    assert sum(seen) == path.stat().st_size


def test_an_invalid_line_is_named_when_several_processes_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_in_threads(monkeypatch)
    path = write(tmp_path / "x.jsonl", random_rows(4, 5))
    path.write_bytes(path.read_bytes() + b"{nothing\n")
    with pytest.raises(RunError, match=r"line 21\b.*JSON"):
        read(path, workers=2, part=5000)


@pytest.mark.parametrize("tail", [b'{"reward": 1, "_ng_ta', b"\x00\x00\x00", b'{"a": "\xff'])
def test_a_truncated_last_line_is_not_counted_but_noted(tmp_path: Path, tail: bytes) -> None:
    profile = load(write(tmp_path / "x.jsonl", grid([1, 2], 2), tail=tail)).profile
    assert profile.coverage.measured == 4 and f"({len(tail)} bytes)" in " ".join(profile.notes)


@pytest.mark.parametrize("text", ["\u2028", "\u0085", "\r", "\x0b\x0c"])
def test_only_a_newline_ends_a_line_and_the_last_line_needs_none(tmp_path: Path, text: str) -> None:
    line = json.dumps({**solved(0, 0, True), "text": text}, ensure_ascii=False)
    path = tmp_path / "x.jsonl"
    path.write_bytes(line.encode() + b"\n\n  \n" + orjson.dumps(solved(0, 1, True)))
    found = read(path)
    assert (len(found.columns), found.torn) == (2, 0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{half", "line 3 is not JSON"),
        (b"[1, 2]", "line 3 is a list"),
        (b'{"reward": 1}', "line 3 .* _ng_task_index"),
        (b'{"reward": 1, "_ng_task_index": "7"}', "line 3 has _ng_task_index '7'"),
        (b'{"reward": 1, "_ng_task_index": true}', "line 3 has _ng_task_index 'True'"),
        (b'{"reward": 1, "_ng_task_index": 1, "_ng_rollout_index": -1}', "line 3 has _ng_rollout_index '-1'"),
    ],
)
def test_a_line_that_is_not_a_rollout_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = write(tmp_path / "x.jsonl", grid([1], 1))
    path.write_bytes(path.read_bytes() + b"\n" + line + b"\n" + orjson.dumps(solved(1, 0, True)) + b"\n")
    with pytest.raises(RunError, match=message):
        read(path)


@pytest.mark.parametrize(
    ("failed", "kind"),
    [
        ({"reward": None}, "no_reward"),
        ({"reward": True}, "no_reward"),
        ({"reward": "1.0"}, "no_reward"),
        ({"reward": None, "failure_kind": "timeout", "response": None}, "timeout"),
        ({"reward": 0.0, "mask_sample": True}, "masked"),
        ({"reward": 0.0, "judge_failsafe": True}, "masked"),
        ({"reward": 0.0, "instance_config": {"mask_sample": True}}, "masked"),
        ({"reward": 0.0, "failure_kind": "judge_failed"}, "judge_failed"),
        ({"reward": 0.0, "_ng_failure_class": "sandbox"}, "sandbox"),
    ],
)
def test_a_row_without_a_valid_reward_is_a_failure(tmp_path: Path, failed: dict[str, Any], kind: str) -> None:
    profile = load_run(tmp_path, [*grid([1], 2), {**row(0, 2, None), **failed}]).profile
    assert profile.coverage.measured == 2
    assert [(found.kind, found.attempts, found.lost) for found in profile.failures.kinds] == [(kind, 1, 1)]


def test_rewards_that_are_sums_of_tenths_are_read_as_such_and_infinite_ones_are_failures(tmp_path: Path) -> None:
    rewards = (sum([0.1] * 7), 0.7, 1 / 3, math.nan, math.inf)
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row(0, repeat, reward)) + "\n" for repeat, reward in enumerate(rewards)))
    run = load(path)
    assert run.columns.reward.tolist() == [0.7, 0.7, 1 / 3] and run.profile.failures.lost == 2


def test_distinct_texts_are_limited_in_number_and_length(tmp_path: Path) -> None:
    rows = [row(task, 0, 0.0, finish_reason=f"{task} {'x' * 500}") for task in range(MAX_CATEGORIES + 50)]
    profile = load_run(tmp_path, rows).profile
    assert len(profile.ends) == MAX_CATEGORIES + 1 and all(len(end.name) <= 100 for end in profile.ends)
    assert (profile.ends[0].name, profile.ends[0].rollouts) == ("(others)", 50)


def test_stages_that_only_some_rows_have_stay_aligned_with_their_rows(tmp_path: Path) -> None:
    rows = [row(0, i, 0.0, timings={"seed_s": 1.0} if i % 2 else {"model_s": float(i)}) for i in range(6)]
    columns = read(write(tmp_path / "x.jsonl", rows), part=400).columns
    np.testing.assert_array_equal(columns.stages["seed"], [np.nan, 1, np.nan, 1, np.nan, 1])
    np.testing.assert_array_equal(columns.stages["model"], [0, np.nan, 2, np.nan, 4, np.nan])


def test_invalid_failure_rows_are_noted_and_do_not_hide_valid_ones(tmp_path: Path) -> None:
    path, failures = write(tmp_path / "x.jsonl", grid([1], 2)), tmp_path / "x_failures.jsonl"
    write_failures(path, [(0, 2, "timeout")])
    failures.write_bytes(b'[]\n{"_ng_task_index": 1}\n' + failures.read_bytes() + b"{torn")
    profile = load(path).profile
    assert profile.failures.attempts == 1 and "3 lines" in " ".join(profile.notes)
