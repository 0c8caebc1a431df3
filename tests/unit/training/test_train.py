"""The order of a training run, what it leaves on disk, and what errors and signals do."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import nullcontext
from pathlib import Path

import anyio
import orjson
import pytest

from rollyard.records.errors import RunError
from rollyard.training import step_runner
from rollyard.training.run_folder import TrainingPaths
from rollyard.training.weight_publisher import PublishedWeights
from tests.unit.training.fake_training import FakeStack, fake_config, json_lines, run_once


def paths(root: Path) -> TrainingPaths:
    return TrainingPaths(root / "run")


def saved(root: Path) -> list[str]:
    return sorted(path.name for path in paths(root).checkpoints.glob("step_*"))


def updates(root: Path) -> list[int]:
    """The steps with figures of an update in metrics.jsonl."""
    file = paths(root).metrics
    return [line["step"] for line in json_lines(file) if "train/loss" in line] if file.exists() else []


def test_a_run_publishes_before_it_plays_and_measures_before_it_evaluates(tmp_path: Path) -> None:
    stack = FakeStack()
    assert run_once(fake_config(tmp_path), stack) == "complete"
    assert stack.calls == [
        *("publish step_000000", "evaluate 0"),
        *("play 1 with step_000000", "publish step_000001", "parity step_000001"),
        *("play 2 with step_000001", "publish step_000002", "parity step_000002", "evaluate 2"),
        *("play 3 with step_000002", "publish step_000003", "parity step_000003", "evaluate 3"),
    ]


def test_each_step_has_a_line_of_metrics_and_each_evaluation_too(tmp_path: Path) -> None:
    run_once(fake_config(tmp_path), FakeStack())
    lines = json_lines(paths(tmp_path).metrics)
    assert [(line["step"], "train/reward" in line, "eval/reward" in line) for line in lines] == [
        *((0, False, True), (1, True, False), (2, True, False), (2, False, True), (3, True, False), (3, False, True))
    ]
    assert lines[1]["train/reward"] == 0.75 and lines[1]["train/loss"] == 0.5 and lines[1]["train/parity_max"] == 1e-5
    assert {"perf/rollout_wait_s", "perf/update_s", "perf/publish_s", "perf/step_s"} <= lines[1].keys()


def test_traces_tell_how_long_each_stage_took_and_what_became_of_each_task_and_of_tokens(tmp_path: Path) -> None:
    run_once(fake_config(tmp_path, max_steps=1, evaluation={}), FakeStack())
    traces = paths(tmp_path).traces
    spans = [(entry["name"], entry["step"]) for entry in json_lines(traces / "trace.jsonl") if entry["type"] == "span"]
    assert spans == [
        *(("publish", 0), ("evaluation", 0), ("rollouts", 1), ("update", 1), ("publish", 1), ("parity", 1)),
        *(("evaluation", 1), ("checkpoint", 1)),
    ]
    samples = [(entry["event"], entry["task_key"]) for entry in json_lines(traces / "samples.jsonl")]
    assert samples == [("used", "a"), ("failed", "a"), ("skipped", "b")]
    pairs = orjson.loads(paths(tmp_path).token_pairs(1).read_bytes())
    assert (pairs["step"], pairs["sample"][0]["engine"], pairs["sample"][0]["trainer"]) == (1, -1.0, -1.5)


def test_a_warning_about_every_version_of_the_weights_is_printed_once(tmp_path: Path) -> None:
    stack, lines = FakeStack(), list[str]()
    stack.warnings = ("47 tensors are F32",)
    run_once(fake_config(tmp_path), stack, lines)
    assert [line for line in lines if "F32" in line] == ["weights step_000000: 47 tensors are F32"]


@pytest.mark.parametrize(
    ("call", "done"),
    [
        *(("publish step_000000", 0), ("play 2 with step_000001", 1)),
        *(("publish step_000002", 2), ("parity step_000002", 2), ("evaluate 2", 2)),
    ],
)
def test_an_error_of_the_stack_ends_the_run_with_a_checkpoint_of_the_last_update(
    call: str, done: int, tmp_path: Path
) -> None:
    def lose_engines() -> None:
        raise RunError("the engines are gone")

    stack = FakeStack()
    stack.on[call] = lose_engines
    with pytest.raises(RunError, match="gone"):
        run_once(fake_config(tmp_path), stack)
    assert saved(tmp_path) == [f"step_{done:06d}"] * bool(done) and updates(tmp_path) == [*range(1, done + 1)]
    stack.on.clear()
    stack.calls.clear()
    assert run_once(fake_config(tmp_path), stack) == "complete"
    assert stack.calls[0] == f"publish step_{done:06d}-r1", "each start has version names of its own"
    assert stack.starts_at[1:] == [{"index": done} if done else {}]
    assert "evaluate 2" in stack.calls, "the evaluation that is missing is part of the resumed run"


def test_traces_that_cannot_be_written_end_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    (samples := paths(tmp_path).traces / "samples.jsonl").mkdir(parents=True)
    with pytest.raises(RunError, match=f"cannot write {samples}: "):
        run_once(fake_config(tmp_path), FakeStack())
    assert saved(tmp_path) == ["step_000001"]


@pytest.mark.parametrize("call", ["play 2 with step_000001", "publish step_000002", "evaluate 2"])
def test_a_signal_cancels_what_the_stack_does_and_saves_the_last_update(call: str, tmp_path: Path) -> None:
    stack, lines = FakeStack(), list[str]()
    cancelled: list[bool] = []

    async def interrupted() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append(True)

    stack.on[call] = interrupted
    assert run_once(fake_config(tmp_path), stack, lines) == "interrupted"
    assert cancelled and stack.calls[-1] == call
    assert stack.is_closed, "rollouts that are played ahead must stop"
    assert [line for line in lines if line.startswith("SIGTERM: ")]
    stack.on.clear()
    assert run_once(fake_config(tmp_path), stack) == "complete"
    assert updates(tmp_path) == [1, 2, 3]


def test_a_second_signal_ends_at_once_without_a_checkpoint(tmp_path: Path) -> None:
    stack = FakeStack()

    async def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await anyio.sleep_forever()
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    stack.on["play 2 with step_000001"] = twice
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_once(fake_config(tmp_path), stack)
    assert not saved(tmp_path) and signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("succeeds", [True, False])
def test_weights_that_an_engine_lost_are_sent_again_while_a_step_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, succeeds: bool
) -> None:
    monkeypatch.setattr(step_runner, "REPAIR_S", 0.01)
    stack, lines, has_weights = FakeStack(), list[str](), asyncio.Event()

    def repaired() -> PublishedWeights:
        if not succeeds:
            raise RunError("the engines are gone")
        has_weights.set()
        return PublishedWeights("step_000000.1", 0.1)

    stack.on["play 1 with step_000000"], stack.repaired = has_weights.wait, repaired
    with nullcontext() if succeeds else pytest.raises(RunError, match="gone"):
        run_once(fake_config(tmp_path), stack, lines)
    assert any(line.endswith(" step_000000.1") for line in lines) is succeeds


def test_the_end_of_the_data_completes_a_run_without_max_steps(tmp_path: Path) -> None:
    stack, lines = FakeStack(batches=2), list[str]()
    assert run_once(fake_config(tmp_path, max_steps=0, evaluation={"interval": 0}), stack, lines) == "complete"
    assert [line for line in lines if line.endswith(" exhausted after 2 updates")]
    assert stack.calls[-2:] == ["play 3 with step_000002", "evaluate 2"] and saved(tmp_path) == ["step_000002"]


def test_a_complete_run_that_gets_more_steps_goes_on(tmp_path: Path) -> None:
    stack = FakeStack()
    run_once(fake_config(tmp_path, evaluation={"interval": 0}), stack)
    stack.calls.clear()
    run_once(fake_config(tmp_path, evaluation={"interval": 0}, max_steps=4), stack)
    assert stack.calls == [
        *("publish step_000003-r1", "play 4 with step_000003-r1", "publish step_000004-r1"),
        *("parity step_000004-r1", "evaluate 4"),
    ]


def test_evaluation_before_the_start_can_be_switched_off_and_checkpoints_follow_their_interval(tmp_path: Path) -> None:
    stack, evaluation = FakeStack(), {"before_start": False, "interval": 0}
    settings = {"max_steps": 5, "checkpoint_interval": 2, "keep_checkpoints": 9, "evaluation": evaluation}
    run_once(fake_config(tmp_path, **settings), stack)
    assert [call for call in stack.calls if call.startswith("evaluate")] == ["evaluate 5"]
    assert saved(tmp_path) == ["step_000002", "step_000004", "step_000005"]
