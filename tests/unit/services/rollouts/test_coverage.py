"""Which lines count as measured: each expected rollout once, with a finite reward. All other lines are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.rollout_keys import Expected
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.store import RolloutStore

EXPECTED = Expected(tasks=3, repeats=2)


def row(task: Any = 0, repeat: Any = 0, reward: Any = 1.0, **more: Any) -> bytes:
    return orjson.dumps({"_ng_task_index": task, "_ng_rollout_index": repeat, "reward": reward, **more})


def resumed(output: Path, *lines: bytes, failures: bool = False) -> tuple[RolloutStore, CollectionProgress]:
    """A store that has loaded a file with these lines, and its progress."""
    first = RolloutStore(RolloutPaths(output), {}, {}, resume=True, overwrite=False)
    first.append((0, 0), row())
    first.close()
    path = RolloutPaths(output).failures if failures else output
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    store, progress = (
        RolloutStore(RolloutPaths(output), {}, {}, resume=True, overwrite=False),
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
def test_a_line_of_an_unexpected_rollout_is_named(tmp_path: Path, task: Any, repeat: Any) -> None:
    bad = f'{{"_ng_task_index": {orjson.dumps(task).decode() if task != 10**30 else task}, '.encode()
    bad += f'"_ng_rollout_index": {orjson.dumps(repeat).decode()}, "reward": 1}}'.encode()
    with pytest.raises(RunError, match=r"run\.jsonl: line 2 .*Delete"):
        resumed(tmp_path / "run.jsonl", row(), bad)


def test_a_failure_of_an_unexpected_rollout_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"run_failures\.jsonl: line 1 .*Delete"):
        resumed(tmp_path / "run.jsonl", row(7, 7), failures=True)


@pytest.mark.parametrize(
    "reward", ["NaN", "Infinity", "-Infinity", '"1"', "true", "null", "[]", "1e999", "1e300", "9" * 400, "9" * 5000]
)
def test_a_line_whose_reward_is_not_a_finite_number_is_named(tmp_path: Path, reward: str) -> None:
    bad = b'{"_ng_task_index":0,"_ng_rollout_index":1,"reward":' + reward.encode() + b"}"
    with pytest.raises(RunError, match=r"run\.jsonl: line 2\W"):
        resumed(tmp_path / "run.jsonl", row(), bad)


@pytest.mark.parametrize("bad", [b"[1]", b"1", b"null", b'{"a":', b"\xff", b"[" * 400 + b"]" * 400, b"[" * 200_000])
def test_a_line_that_is_not_a_json_object_is_named(tmp_path: Path, bad: bytes) -> None:
    with pytest.raises(RunError, match=r"run\.jsonl: line 2( is|:) .*Delete"):
        resumed(tmp_path / "run.jsonl", row(), bad)


def test_a_duplicate_rollout_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"line 3 .*task 1, repeat 1"):
        resumed(tmp_path / "run.jsonl", row(1, 1), row(0, 0), row(1, 1, 5.0))


@pytest.mark.parametrize("key", ["_ng_task_index", "_ng_rollout_index", "reward"])
def test_a_line_that_repeats_an_index_or_the_reward_key_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(RunError, match=rf"run\.jsonl: line 2 .*{key} twice"):
        resumed(tmp_path / "run.jsonl", row(), row(1, 1)[:-1] + f', "{key}" : 2}}'.encode())


def test_the_same_key_in_a_nested_object_is_not_a_repetition(tmp_path: Path) -> None:
    nested = {"reward": [{"reward": 1}], "text": '"reward": 2', "_ng_task_index": 7}
    store, _ = resumed(tmp_path / "run.jsonl", row(1, 1, extra=nested))
    assert len(store.done) == 1


@pytest.mark.parametrize("history", ["old", True, [], {}, {"turns": "x"}, {"turns": 10**18, "breaks": -1}, None, 5])
def test_optional_keys_with_invalid_values_count_as_absent(tmp_path: Path, history: Any) -> None:
    invalid = row(0, 0, token_trail=history, success="yes", dataset_name=5, usage=[], response=None, timings="x")
    store, progress = resumed(tmp_path / "run.jsonl", invalid)
    assert (len(store.done), progress.measured, progress.successes, progress.token_turns) == (1, 1, None, 0)


@pytest.mark.parametrize("other", ["run.json", "run.jsonl.gz", "run"])
def test_an_output_that_would_share_a_manifest_is_rejected(tmp_path: Path, other: str) -> None:
    first = RolloutStore(RolloutPaths(tmp_path / "run.jsonl"), {"a": 1}, {}, resume=True, overwrite=False)
    first.append((0, 0), row())
    first.close()
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    paths = RolloutPaths(tmp_path / other)
    if paths.manifest != first.paths.manifest:
        RolloutStore(paths, {"a": 2}, {}, resume=True, overwrite=False).close()
    else:
        with pytest.raises(OperatorError, match=r"run_manifest\.json belongs to run\.jsonl"):
            RolloutStore(paths, {"a": 2}, {}, resume=True, overwrite=False)
    assert before.items() <= {path: path.read_bytes() for path in tmp_path.iterdir()}.items()


@pytest.mark.parametrize("suffix", ["failures.jsonl", "materialized_inputs.jsonl", "status.json"])
def test_an_output_with_the_name_of_a_sidecar_file_is_not_overwritten(tmp_path: Path, suffix: str) -> None:
    existing = RolloutStore(RolloutPaths(tmp_path / f"run_{suffix}"), {}, {}, resume=True, overwrite=False)
    existing.append((0, 0), row())
    existing.close()
    for overwrite in (False, True):
        with pytest.raises(OperatorError, match="another collection"):
            RolloutStore(RolloutPaths(tmp_path / "run.jsonl"), {}, {}, resume=True, overwrite=overwrite)
    assert existing.paths.output.read_bytes() == row() + b"\n"


def test_an_output_may_be_renamed_together_with_its_sidecar_files(tmp_path: Path) -> None:
    first = RolloutStore(RolloutPaths(tmp_path / "run.jsonl"), {}, {}, resume=True, overwrite=False)
    first.append((0, 0), row())
    first.close()
    for path in list(tmp_path.iterdir()):
        path.rename(path.with_name(path.name.replace("run", "kept")))
    reopened = RolloutStore(RolloutPaths(tmp_path / "kept.jsonl"), {}, {}, resume=True, overwrite=False)
    reopened.load(None, EXPECTED)
    reopened.close()
    assert len(reopened.done) == 1
