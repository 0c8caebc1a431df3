"""A rollout file without a manifest continues only if each of its rows belongs to the collection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.types import Json
from rollyard.services.rollouts.store import Adopter, RolloutStore
from tests.support.partial_runs import (
    AGENT,
    PARAMS,
    check_complete,
    resume,
    rollout,
    task,
    tasks_of,
    without_keys,
    write_lines,
)

INPUTS = [task(0), task(1)]
FIRST = rollout(INPUTS[0], 0, 1)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "input.jsonl", INPUTS)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "rollouts.jsonl"


def manifest_of(output: Path) -> Json:
    manifest: Json = orjson.loads(RolloutPaths(output).manifest.read_bytes())
    return manifest


def open_store(source: Path, output: Path, *, seeded: bool = False, **params: Any) -> None:
    tasks = tasks_of(source)
    adopter = Adopter(tasks, 2, params or PARAMS, seeded=seeded)
    RolloutStore(RolloutPaths(output), tasks.identity, {}, resume=True, overwrite=False, adopter=adopter).close()


def test_rows_with_their_keys_are_adopted_without_touching_the_file(source: Path, output: Path) -> None:
    before = write_lines(output, [FIRST]).read_bytes()
    resumed = resume(source, output, 2)
    assert output.read_bytes().startswith(before)
    adopted = manifest_of(output)["adopted"]
    assert (adopted["rollouts"], adopted["new_keys"], adopted["original"]) == (1, 0, "")
    assert "its 1 rollouts" in resumed.notes[0]
    check_complete(INPUTS, output, 2)


def test_rows_without_keys_get_the_free_repeats_in_file_order_and_the_original_file_is_kept(
    source: Path, output: Path
) -> None:
    rows = [without_keys(rollout(INPUTS[1], 1, 0, 0.25)), without_keys(rollout(INPUTS[1], 1, 1, 0.5)), FIRST]
    before = write_lines(output, rows).read_bytes()
    resume(source, output, 2)
    found = [orjson.loads(line) for line in output.read_bytes().splitlines()]
    assert [(row["_ng_task_index"], row["_ng_rollout_index"], row["reward"]) for row in found] == [
        *[(1, 0, 0.25), (1, 1, 0.5), (0, 1, 1.0), (0, 0, 1.0)]
    ]
    adopted = manifest_of(output)["adopted"]
    assert adopted["new_keys"] == 2
    assert output.with_name(adopted["original"]).read_bytes() == before


def test_a_crash_before_the_manifest_is_written_loses_nothing(source: Path, output: Path) -> None:
    """Keys are written by replacing the file; the manifest follows."""
    write_lines(output, [without_keys(FIRST)])
    resume(source, output, 2)
    RolloutPaths(output).manifest.unlink()
    assert resume(source, output, 2).keys == []
    assert manifest_of(output)["adopted"]["rollouts"] == 4
    check_complete(INPUTS, output, 2)


def test_failures_of_unknown_rows_are_set_aside_even_if_a_crash_follows_the_writing_of_keys(
    source: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have keys of their own, which rejected tasks would keep from being collected."""

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    write_lines(output, [without_keys(FIRST)])
    rejected = {"_ng_task_index": 1, "_ng_rollout_index": 0, "failure_kind": "bad_task"}
    failures = write_lines(RolloutPaths(output).failures, [rejected])
    with monkeypatch.context() as patched:
        patched.setattr("rollyard.services.rollouts.store.new_manifest", killed)
        with pytest.raises(KeyboardInterrupt):
            resume(source, output, 2)
    resume(source, output, 2)
    assert failures.read_bytes() == b""
    assert failures.with_name(f"{failures.name}.stale").exists()


def test_the_rest_of_a_line_that_gets_keys_stays_as_it_was(source: Path, output: Path) -> None:
    line = orjson.dumps(without_keys(FIRST))[:-1] + b', "big": 123456789012345678901234567890, "x": 1e-7 }'
    output.write_bytes(line + b"\n")
    resume(source, output, 2)
    assert output.read_bytes().startswith(line.rstrip(b"}") + b",")


def test_what_openais_types_add_to_a_request_is_not_a_difference(source: Path, output: Path) -> None:
    """NeMo Gym writes requests after validation, with nulls, defaults and the types of messages."""
    message = {"role": "user", "content": "Play.", "type": "message"}
    validated = {"input": [message], "tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "user": None}
    write_lines(output, [{**without_keys(FIRST), "responses_create_params": {**validated, **PARAMS}}])
    assert len(resume(source, output, 2).keys) == 3


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (rollout(task(5), 0, 0), "not a rollout"),
        (without_keys(rollout(task(5), 0, 0)), "not a rollout"),
        ({"unknown": "origin", "reward": 1.0}, "not a rollout"),
        ({**FIRST, "reward": None}, "has reward None"),
        (rollout(INPUTS[0], 0, 2), "repeat 2 of task 0"),
        (FIRST, "repeats task 0, repeat 1"),
        ({**rollout(INPUTS[1], 1, 0), "agent_ref": {"name": "other"}}, "agent 'other'"),
        (
            {**rollout(INPUTS[1], 1, 0), "responses_create_params": INPUTS[1]["responses_create_params"]},
            "no temperature, now temperature=0.8",
        ),
    ],
)
def test_a_row_that_does_not_belong_is_named_and_nothing_is_changed(
    source: Path, output: Path, row: Json, problem: str
) -> None:
    before = write_lines(output, [FIRST, row]).read_bytes()
    with pytest.raises(OperatorError) as refused:
        resume(source, output, 2)
    assert "line 2 " in str(refused.value) and problem in str(refused.value)
    assert output.read_bytes() == before
    assert not RolloutPaths(output).manifest.exists()


def test_more_rollouts_than_repeats_are_refused(source: Path, output: Path) -> None:
    write_lines(output, [without_keys(FIRST)] * 3)
    with pytest.raises(OperatorError, match=r"line 3 .*task 0\b"):
        resume(source, output, 2)


def test_seeds_of_the_repeats_must_match_their_numbers(source: Path, output: Path) -> None:
    params = {**FIRST["responses_create_params"], "metadata": {"extra_body": '{"seed":1}'}}
    write_lines(output, [{**FIRST, "responses_create_params": params}])
    open_store(source, output, seeded=True)
    RolloutPaths(output).manifest.unlink()
    write_lines(output, [{**FIRST, "responses_create_params": params, "_ng_rollout_index": 0}])
    with pytest.raises(OperatorError, match=r"line 1 .* metadata="):
        open_store(source, output, seeded=True)


def test_an_unreadable_manifest_is_not_replaced(source: Path, output: Path) -> None:
    write_lines(output, [FIRST])
    RolloutPaths(output).manifest.write_text("{")
    with pytest.raises(OperatorError, match=r"manifest.* move it away"):
        resume(source, output, 2)


def test_a_rollout_of_gymnasium_agent_which_repeats_only_the_prompt_and_appends_the_board_is_adopted(
    source: Path, output: Path
) -> None:
    prompt = INPUTS[1]["responses_create_params"]["input"]
    board = {"role": "user", "content": "#####", "type": "message"}
    keys = {"_ng_task_index": 1, "_ng_rollout_index": 0, "agent_ref": {"name": AGENT}}
    params = {"input": [*prompt, board], "tools": None, **PARAMS}
    played = {"responses_create_params": params, "response": {"output": []}}
    row: Json = {**played, "reward": 0.5, "terminated": True, "truncated": False, "info": {}, **keys}
    write_lines(output, [row])
    resumed = resume(source, output, 2)
    assert resumed.keys == [(0, 0), (0, 1), (1, 1)]


def test_a_rollout_whose_prompt_is_that_of_no_task_without_its_last_message_is_refused(
    source: Path, output: Path
) -> None:
    played = [{"role": "user", "content": "Else."}, {"role": "user", "content": "#####"}]
    write_lines(
        output, [{**FIRST, "_ng_task_key": None, "responses_create_params": {"input": played}, "terminated": True}]
    )
    with pytest.raises(OperatorError, match="not a rollout of a task"):
        open_store(source, output)
