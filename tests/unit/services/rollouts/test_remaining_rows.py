"""The manual resume: rows that lack rollouts are found by content and key, and complete the file."""

from __future__ import annotations

import tempfile
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.grl_sokoban.checkpoint_resume_rollouts import main
from rollyard.services.rollouts.task_subset import find_remaining
from tests.support.partial_runs import check_complete, resume, rollout, task, tasks_of, without_keys, write_lines

REPEATS = 3


def checkpoint(folder: Path, name: str = "rollouts.jsonl") -> Path:
    output = folder / "remaining_prompts.jsonl"
    files = ["--input", str(folder / "input.jsonl"), "--rollouts", str(folder / name), "--output", str(output)]
    main([*files, "--target-repeats", str(REPEATS)])
    return output


def printed_rows(path: Path) -> list[Json]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


contents = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@settings(max_examples=50)
@given(contents, st.data())
def test_any_partial_file_is_completed_to_exactly_the_target_of_every_task(
    seeds: list[int], data: st.DataObject
) -> None:
    """With duplicate tasks, files with and without keys, and torn last lines, even one that is valid JSON."""
    inputs = [task(seed) for seed in seeds]
    keys = [(index, repeat) for index in range(len(inputs)) for repeat in range(REPEATS)]
    done = data.draw(st.lists(st.sampled_from(keys), unique=True))
    rows = [rollout(inputs[index], index, repeat) for index, repeat in done]
    if data.draw(st.booleans(), label="written by another program"):
        rows = [without_keys(row) for row in rows]
    tail = data.draw(st.sampled_from([b"", b'{"seed": 1, "rew', orjson.dumps(rollout(inputs[0], 0, 0))]))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = write_lines(folder / "input.jsonl", inputs)
        output = write_lines(folder / "rollouts.jsonl", rows, tail)
        remaining = checkpoint(folder)
        if remaining.stat().st_size and rows:
            resume(remaining, output, REPEATS)
        collected = resume(source, output, REPEATS).keys  # the original input given later resumes as well
        assert not collected or not rows
        check_complete(inputs, output, REPEATS)


def test_only_the_missing_repeats_of_a_row_are_collected(tmp_path: Path) -> None:
    inputs = [task(0), task(1), task(2)]
    source = write_lines(tmp_path / "input.jsonl", inputs)
    output = tmp_path / "rollouts.jsonl"
    resume(source, output, REPEATS)
    lines = output.read_bytes().splitlines(keepends=True)
    output.write_bytes(b"".join(lines[:3] + lines[4:5] + lines[6:]))  # task 1 lacks repeats 0 and 2
    remaining = checkpoint(tmp_path)
    assert [row["_ng_task_index"] for row in printed_rows(remaining)] == [1]
    resumed = resume(remaining, output, REPEATS)
    assert resumed.keys == [(1, 0), (1, 2)]
    check_complete(inputs, output, REPEATS)


def test_lines_that_do_not_count_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = [task(0), task(1)]
    write_lines(tmp_path / "input.jsonl", inputs)
    rows = [
        rollout(inputs[0], 0, 0),
        rollout(inputs[0], 0, 0),
        rollout(task(9), 1, 0),
        rollout(inputs[1], 1, 0, None),
        rollout(inputs[1], 1, REPEATS),
    ]
    write_lines(tmp_path / "rollouts.jsonl", rows, b'{"torn')
    checkpoint(tmp_path)
    printed = capsys.readouterr().out
    assert "Found 1 existing rollouts (expected 6)" in printed
    assert "[INFO] Creating checkpoint to resume from remaining prompts..." in printed
    assert "line 2 repeats task 0" in printed
    assert "line 3 is not" in printed
    assert "line 4 has reward" in printed
    assert "line 5 is repeat 3" in printed
    assert "line 6 is incomplete" in printed
    assert "2 remaining prompts lack 5" in printed


def test_rollouts_of_a_file_that_numbered_its_tasks_anew_are_counted_by_content(tmp_path: Path) -> None:
    """The original program numbers the rows of remaining_prompts.jsonl from 0 again."""
    inputs = [task(0), task(1)]
    source = write_lines(tmp_path / "input.jsonl", inputs)
    rows = [{**rollout(inputs[1], 0, repeat), "_ng_task_key": None} for repeat in range(2)]
    found = find_remaining(tasks_of(source), write_lines(tmp_path / "rollouts.jsonl", rows), REPEATS)
    assert found.missing == {0: 3, 1: 1}


def test_rows_of_the_same_prompt_without_any_other_field_need_their_index(tmp_path: Path) -> None:
    inputs = [task(0), task(1)]
    source = write_lines(tmp_path / "input.jsonl", inputs)
    bare = [{key: value for key, value in without_keys(rollout(row, 0, 0)).items() if key != "seed"} for row in inputs]
    indexed = [{**row, "_ng_task_index": index} for index, row in enumerate(bare)]
    refused = find_remaining(tasks_of(source), write_lines(tmp_path / "bare.jsonl", bare), REPEATS)
    assert refused.found == 0 and "fits 2 tasks" in refused.skipped[0][1]
    counted = find_remaining(tasks_of(source), write_lines(tmp_path / "indexed.jsonl", indexed), REPEATS)
    assert counted.missing == {0: 2, 1: 2}


@pytest.mark.parametrize("overwritten", ["input.jsonl", "rollouts.jsonl"])
def test_the_script_never_overwrites_its_inputs(tmp_path: Path, overwritten: str) -> None:
    source = write_lines(tmp_path / "input.jsonl", [task(0)])
    output = write_lines(tmp_path / "rollouts.jsonl", [rollout(task(0), 0, 0)])
    with pytest.raises(OperatorError, match="would be overwritten"):
        main(["--input", str(source), "--rollouts", str(output), "--output", str(tmp_path / overwritten)])


def test_the_remaining_rows_of_an_empty_output_start_the_collection_of_the_original_input(tmp_path: Path) -> None:
    inputs = [task(0), task(1), task(1)]
    source, output = write_lines(tmp_path / "input.jsonl", inputs), tmp_path / "rollouts.jsonl"
    output.touch()
    assert len(resume(checkpoint(tmp_path), output, REPEATS).keys) == 3 * REPEATS
    output.write_bytes(b"".join(output.read_bytes().splitlines(keepends=True)[:4]))
    assert len(resume(checkpoint(tmp_path), output, REPEATS).keys) == 3 * REPEATS - 4
    assert resume(source, output, REPEATS).keys == []
    check_complete(inputs, output, REPEATS)


def test_the_remaining_rows_of_another_output_are_an_input_of_their_own(tmp_path: Path) -> None:
    inputs = [task(0), task(1)]
    write_lines(tmp_path / "input.jsonl", inputs)
    write_lines(tmp_path / "rollouts.jsonl", [rollout(inputs[0], 0, repeat) for repeat in range(REPEATS)])
    remaining, other = checkpoint(tmp_path), tmp_path / "other.jsonl"
    assert resume(remaining, other, REPEATS).keys == [(0, repeat) for repeat in range(REPEATS)]
