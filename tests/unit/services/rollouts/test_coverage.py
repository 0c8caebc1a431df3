"""What counts as measured: every expected rollout once, with a finite reward; any other line is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.services.errors import OperatorError, RunError
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.rollout_keys import Expected
from rollyard.services.rollouts.store import RolloutStore, StorePaths

EXPECTED = Expected(tasks=3, repeats=2)


def row(task: Any = 0, repeat: Any = 0, reward: Any = 1.0, **more: Any) -> bytes:
    return orjson.dumps({"_ng_task_index": task, "_ng_rollout_index": repeat, "reward": reward, **more})


def resumed(output: Path, *lines: bytes, failures: bool = False) -> tuple[RolloutStore, CollectionProgress]:
    """A store over a file that holds these lines, loaded."""
    fresh = RolloutStore(StorePaths(output), {}, {}, resume=True, overwrite=False)
    fresh.append((0, 0), row())
    fresh.close()
    path = StorePaths(output).failures if failures else output
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    store, progress = (
        RolloutStore(StorePaths(output), {}, {}, resume=True, overwrite=False),
        CollectionProgress(EXPECTED.count),
    )
    try:
        store.load(progress.count, EXPECTED)
    finally:
        store.close()
    return store, progress


@pytest.mark.parametrize(
    ("task", "repeat"),
    [(3, 0), (0, 2), (-1, 0), (0, -1), (10**30, 0), (0, 2**40), (True, 0), (0, False), (1.0, 0), ("1", 0), (None, 0)],
)
def test_a_line_of_no_expected_rollout_is_named(tmp_path: Path, task: Any, repeat: Any) -> None:
    bad = f'{{"_ng_task_index": {orjson.dumps(task).decode() if task != 10**30 else task}, '.encode()
    bad += f'"_ng_rollout_index": {orjson.dumps(repeat).decode()}, "reward": 1}}'.encode()
    with pytest.raises(RunError, match=r"run\.jsonl: line 2 .*Delete that line"):
        resumed(tmp_path / "run.jsonl", row(), bad)


def test_a_failure_of_no_expected_rollout_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"run_failures\.jsonl: line 1 .*Delete that line"):
        resumed(tmp_path / "run.jsonl", row(7, 7), failures=True)


@pytest.mark.parametrize(
    "reward", ["NaN", "Infinity", "-Infinity", '"1"', "true", "null", "[]", "1e999", "1e300", "9" * 400, "9" * 5000]
)
def test_a_line_whose_reward_is_no_finite_number_is_named(tmp_path: Path, reward: str) -> None:
    bad = b'{"_ng_task_index":0,"_ng_rollout_index":1,"reward":' + reward.encode() + b"}"
    with pytest.raises(RunError, match=r"run\.jsonl: line 2\W"):
        resumed(tmp_path / "run.jsonl", row(), bad)


@pytest.mark.parametrize("bad", [b"[1]", b"1", b"null", b'{"a":', b"\xff", b"[" * 400 + b"]" * 400, b"[" * 200_000])
def test_a_line_that_is_no_object_is_named(tmp_path: Path, bad: bytes) -> None:
    with pytest.raises(RunError, match=r"run\.jsonl: line 2( is|:) .*Delete that line"):
        resumed(tmp_path / "run.jsonl", row(), bad)


def test_two_lines_of_one_rollout_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="line 3 repeats task 1, repeat 1"):
        resumed(tmp_path / "run.jsonl", row(1, 1), row(0, 0), row(1, 1, 5.0))


@pytest.mark.parametrize("key", ["_ng_task_index", "_ng_rollout_index", "reward"])
def test_a_line_that_says_twice_which_rollout_it_is_or_its_reward_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(RunError, match=rf"run\.jsonl: line 2 has the key {key} twice"):
        resumed(tmp_path / "run.jsonl", row(), row(1, 1)[:-1] + f', "{key}" : 2}}'.encode())


def test_a_key_of_the_row_that_stands_deeper_is_no_repetition(tmp_path: Path) -> None:
    nested = {"reward": [{"reward": 1}], "text": '"reward": 2', "_ng_task_index": 7}
    store, _ = resumed(tmp_path / "run.jsonl", row(1, 1, extra=nested))
    assert len(store.done) == 1


@pytest.mark.parametrize("trail", ["old", True, [], {}, {"turns": "x"}, {"turns": 10**18, "breaks": -1}, None, 5])
def test_odd_optional_keys_count_as_absent(tmp_path: Path, trail: Any) -> None:
    odd = row(0, 0, token_trail=trail, success="yes", dataset_name=5, usage=[], response=None, timings="x")
    store, progress = resumed(tmp_path / "run.jsonl", odd)
    assert (len(store.done), progress.measured, progress.successes, progress.token_turns) == (1, 1, None, 0)


@pytest.mark.parametrize("other", ["run.json", "run.jsonl.gz", "run"])
def test_outputs_that_would_share_a_manifest_are_refused(tmp_path: Path, other: str) -> None:
    first = RolloutStore(StorePaths(tmp_path / "run.jsonl"), {"a": 1}, {}, resume=True, overwrite=False)
    first.append((0, 0), row())
    first.close()
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    paths = StorePaths(tmp_path / other)
    if paths.manifest != first.paths.manifest:
        RolloutStore(paths, {"a": 2}, {}, resume=True, overwrite=False).close()
    else:
        with pytest.raises(OperatorError, match=r"run_manifest\.json belongs to run\.jsonl"):
            RolloutStore(paths, {"a": 2}, {}, resume=True, overwrite=False)
    assert before.items() <= {path: path.read_bytes() for path in tmp_path.iterdir()}.items()


@pytest.mark.parametrize("suffix", ["failures.jsonl", "materialized_inputs.jsonl", "status.json"])
def test_an_output_that_is_called_like_anothers_file_is_left_alone(tmp_path: Path, suffix: str) -> None:
    taken = RolloutStore(StorePaths(tmp_path / f"run_{suffix}"), {}, {}, resume=True, overwrite=False)
    taken.append((0, 0), row())
    taken.close()
    for overwrite in (False, True):
        with pytest.raises(OperatorError, match="the output of another collection"):
            RolloutStore(StorePaths(tmp_path / "run.jsonl"), {}, {}, resume=True, overwrite=overwrite)
    assert taken.paths.output.read_bytes() == row() + b"\n"


def test_an_output_may_be_renamed_with_its_files(tmp_path: Path) -> None:
    first = RolloutStore(StorePaths(tmp_path / "run.jsonl"), {}, {}, resume=True, overwrite=False)
    first.append((0, 0), row())
    first.close()
    for path in list(tmp_path.iterdir()):
        path.rename(path.with_name(path.name.replace("run", "kept")))
    again = RolloutStore(StorePaths(tmp_path / "kept.jsonl"), {}, {}, resume=True, overwrite=False)
    again.load(None, EXPECTED)
    again.close()
    assert len(again.done) == 1
