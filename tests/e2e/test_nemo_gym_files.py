"""`ng_export --format nemo_gym`. tests/external/nemo_gym reads its files with NeMo Gym."""

from __future__ import annotations

import json
from pathlib import Path

import orjson
import pytest

from rollyard.records.rollout_file import RolloutPaths
from tests.support.commands import in_this_process
from tests.support.partial_runs import AGENT, resume, task, write_lines
from tests.support.rollout_files import grid, write, write_failures
from tests.support.stacks import keys_of, read_rows

pytestmark = pytest.mark.usefixtures("here")


def exported(name: str, capsys: pytest.CaptureFixture[str]) -> tuple[RolloutPaths, str]:
    done = in_this_process("ng_export", f"{name}.jsonl", "--format", "nemo_gym", capsys=capsys)
    assert done.status == 0, done.err
    return RolloutPaths(Path(f"{name}_nemo_gym", "rollouts.jsonl")), done.out


def test_rollouts_failures_and_metrics_have_its_form_even_if_the_input_is_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [{**row, "agent_ref": {"name": "player"}} for row in grid([1, 2], 2)]
    write(Path("base.jsonl"), rows)
    write_failures(Path("base.jsonl"), [(2, 0, "timeout"), (3, 0, "bad_task")])
    files, printed = exported("base", capsys)
    found = read_rows(files.output)
    assert [row.pop("ng_trajectory")["rollout_id"] for row in found] == ["0-0", "0-1", "1-0", "1-1"]
    assert found == rows
    named = [(row["failure_kind"], row["_ng_failure_terminal"]) for row in read_rows(files.failures)]
    assert named == [("transport_timeout", False), ("rollyard:bad_task", True)]
    [entry] = orjson.loads(files.sidecar("aggregate_metrics.json").read_bytes())
    assert (entry["agent_ref"]["name"], entry["agent_metrics"]["mean/reward"]) == ("player", 0.75)
    assert keys_of(read_rows(files.materialized)) == keys_of(rows)
    assert "cannot continue" in printed


def test_the_inputs_of_a_collection_that_has_not_ended_are_those_of_all_its_rollouts(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = write_lines(here / "input.jsonl", [task(0), task(1)]), here / "part.jsonl"
    resume(source, output, 2)
    manifest = orjson.loads((here / "part_manifest.json").read_bytes())
    manifest["identity"] |= {"agent_name": AGENT, "responses_create_params": {"temperature": 0.5}}
    (here / "part_manifest.json").write_bytes(orjson.dumps(manifest))
    output.write_bytes(b"".join(output.read_bytes().splitlines(keepends=True)[:1]))
    files, printed = exported("part", capsys)
    inputs = read_rows(files.materialized)
    assert keys_of(inputs) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [row["seed"] for row in inputs] == [0, 0, 1, 1]
    assert all(row["responses_create_params"]["temperature"] == 0.5 for row in inputs)
    assert all(row["agent_ref"] == {"name": AGENT} for row in inputs)
    assert "cannot continue" not in printed


def test_a_rollout_that_is_there_twice_is_refused_and_leaves_no_folder(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(Path("twice.jsonl"), grid([1], 1) * 2)
    done = in_this_process("ng_export", "twice.jsonl", "--format", "nemo_gym", capsys=capsys)
    assert done.status == 1 and "twice" in done.err
    assert not [path for path in here.iterdir() if path.is_dir()]


def test_a_failed_rollout_is_no_reward_of_0_in_the_metrics_whatever_its_flag_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    [right, failed] = grid([1], 2)
    write(Path("base.jsonl"), [right, {**failed, "reward": 0.0, "mask_sample": False, "_ng_failure_class": "x"}])
    files, _ = exported("base", capsys)
    [entry] = orjson.loads(files.sidecar("aggregate_metrics.json").read_bytes())
    assert (entry["agent_metrics"]["mean/reward"], entry["agent_metrics"]["left_out/rollouts"]) == (1.0, 1)


@pytest.mark.parametrize("form", ["nemo_gym", "atif"])
def test_an_unfinished_last_line_is_left_out_of_rollouts_and_failures_alike(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(Path("base.jsonl"), grid([1], 1))
    write_failures(Path("base.jsonl"), [(1, 0, "timeout"), (2, 0, "timeout")])
    for path in (Path("base.jsonl"), Path("base_failures.jsonl")):
        path.write_bytes(path.read_bytes() + b'{"_ng_task_ind')
    done = in_this_process("ng_export", "base.jsonl", "--format", form, capsys=capsys)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("1 rollout, 2 failed attempts")


def test_the_name_of_an_agent_may_be_half_a_character(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("base.jsonl"), [{**row, "agent_ref": {"name": "NAME"}} for row in grid([1], 1)])
    Path("base.jsonl").write_bytes(Path("base.jsonl").read_bytes().replace(b"NAME", rb"\ud800"))
    files, _ = exported("base", capsys)
    [entry] = json.loads(files.sidecar("aggregate_metrics.json").read_bytes())
    assert entry["agent_ref"] == {"name": "\ud800"}


def test_a_rollout_that_is_nested_too_deeply_is_refused_with_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("base.jsonl"), [{**row, "deep": "DEEP"} for row in grid([1], 1)])
    deep = b"[" * 1010 + b"]" * 1010
    Path("base.jsonl").write_bytes(Path("base.jsonl").read_bytes().replace(b'"DEEP"', deep))
    done = in_this_process("ng_export", "base.jsonl", "--format", "nemo_gym", capsys=capsys)
    assert done.status == 1 and "task 0, repeat 0 is nested too deeply" in done.err
