"""A watch of checkpoints: each is evaluated once, and one table holds their results."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from threading import Event

import orjson
import pytest

from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.headline import Headline
from rollyard.launchers.evaluation.watch import (
    CheckpointTable,
    EvaluatedCheckpoint,
    EvalWatch,
    check_watch_identity,
    identity_of_watch,
    open_source,
    write_watch_identity,
)
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.types import Json
from tests.unit.launchers.evaluation.checkpoint_files import checkpoint


def collected(config: EvalConfig, rewards: tuple[float, ...] = (1.0, 0.0), expected: int = 2) -> None:
    """Leave the files of an evaluation with one task."""
    config.output_dir.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "responses_create_params": {"input": "question"},
            "response": {"output": []},
            "reward": reward,
            "_ng_task_index": 0,
            "_ng_rollout_index": repeat,
            "agent_ref": {"name": "agent"},
        }
        for repeat, reward in enumerate(rewards)
    ]
    (config.output_dir / "rollouts.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    manifest = {
        "identity": {"num_repeats": expected, "rows": 1},
        "versions": {},
        "created": 1.0,
        "output": "rollouts.jsonl",
        "code": [],
    }
    (config.output_dir / "rollouts_manifest.json").write_bytes(orjson.dumps(manifest))


def watch_once(
    root: Path, evaluate: Callable[[EvalConfig], None] = collected, *, poll_s: float = 0.0, marker: str | None = None
) -> list[str]:
    """Evaluate the checkpoints that are there now; return what was printed."""
    lines: list[str] = []
    source = open_source(str(root / "checkpoints"), root / "copies", "*", marker)
    config = EvalConfig(output_dir=root / "out")
    EvalWatch(config, source, evaluate, poll_s=poll_s, print_line=lines.append).run(Event(), once=True)
    return lines


def rows(root: Path) -> list[EvaluatedCheckpoint]:
    return CheckpointTable(root / "out").rows


def test_each_checkpoint_is_evaluated_once_in_the_order_of_its_step(tmp_path: Path) -> None:
    for step in (100, 20, 3):
        checkpoint(tmp_path / f"checkpoints/step_{step}")
    seen: list[str] = []

    def evaluate(config: EvalConfig) -> None:
        seen.append(str(config.model))
        collected(config)

    for _ in range(2):
        watch_once(tmp_path, evaluate)
    assert seen == [f"vllm/{tmp_path}/checkpoints/step_{step}" for step in (3, 20, 100)]
    assert [row.step for row in rows(tmp_path)] == [3, 20, 100]


def test_a_failed_evaluation_is_tried_again_and_not_marked_done(tmp_path: Path) -> None:
    checkpoint(tmp_path / "checkpoints/step_1")
    tries = 0

    def evaluate(config: EvalConfig) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise RunError("vLLM: status 1")
        collected(config)

    for _ in range(2):
        watch_once(tmp_path, evaluate)
    (failed,) = rows(tmp_path)
    assert (failed.headline, failed.tries, failed.error) == (None, 2, "vLLM: status 1")
    for _ in range(2):
        watch_once(tmp_path, evaluate)
    (done,) = rows(tmp_path)
    assert tries == 3
    assert done.headline is not None


def test_an_evaluation_with_missing_rollouts_is_not_done(tmp_path: Path) -> None:
    checkpoint(tmp_path / "checkpoints/step_1")
    watch_once(tmp_path, lambda config: collected(config, expected=3))
    (row,) = rows(tmp_path)
    assert row.headline is None
    assert "2 of 3" in row.error


def test_after_a_failure_the_next_poll_waits(tmp_path: Path) -> None:
    checkpoint(tmp_path / "checkpoints/step_1")
    tries = 0

    def evaluate(config: EvalConfig) -> None:
        nonlocal tries
        tries += 1
        raise RunError("no GPU")

    for _ in range(3):
        watch_once(tmp_path, evaluate, poll_s=600.0)
    assert tries == 1


def test_a_checkpoint_without_its_marker_waits(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoints/step_1")
    lines = watch_once(tmp_path, marker="DONE")
    assert lines[-1].startswith("step_1 ") and "DONE" in lines[-1]
    (folder / "DONE").touch()
    watch_once(tmp_path, marker="DONE")
    assert len(rows(tmp_path)) == 1


def test_a_checkpoint_that_cannot_be_served_does_not_block_the_others(tmp_path: Path) -> None:
    for number in (1, 2):
        checkpoint(tmp_path / f"checkpoints/step_{number}")

    def evaluate(config: EvalConfig) -> None:
        if config.output_dir.name == "step_1":
            raise OperatorError("Model architectures ['X'] are not supported")
        collected(config)

    watch_once(tmp_path, evaluate)
    first, second = rows(tmp_path)
    assert (first.headline, second.error) == (None, "") and "not supported" in first.error


def test_the_tables_show_metrics_with_intervals(tmp_path: Path) -> None:
    checkpoint(tmp_path / "checkpoints/step_1")
    watch_once(tmp_path)
    text = (tmp_path / "out/checkpoints.md").read_text()
    assert text.splitlines()[0].startswith("| step | checkpoint | rollouts | reward |")
    assert "| 1 | step_1 | 2 of 2 | 0.500" in text
    (line,) = csv.DictReader((tmp_path / "out/checkpoints.csv").read_text().splitlines())
    assert (line["step"], line["measured"], line["reward"]) == ("1", "2", "0.5")


def test_the_csv_file_leaves_undefined_metrics_empty(tmp_path: Path) -> None:
    table = CheckpointTable(tmp_path)
    table.record("final", Headline(measured=0, expected=0, metrics={}))
    assert (tmp_path / "checkpoints.csv").read_text() == "step,checkpoint,measured,expected\n,final,0,0\n"


def identity(address: str = "/checkpoints", **keys: object) -> Json:
    return identity_of_watch(
        EvalConfig.model_validate({"output_dir": "out", "environments": ["gsm8k"], **keys}), address
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (identity("/others"), "watch: '/checkpoints' .*'/others'"),
        (identity(num_repeats=4), "num_repeats: 1 .*4"),
        (identity(vllm={"dtype": "float32"}), "vllm.dtype: 'auto' .*'float32'"),
    ],
)
def test_a_watch_of_other_checkpoints_or_parameters_is_refused(tmp_path: Path, changed: Json, message: str) -> None:
    write_watch_identity(tmp_path, identity())
    with pytest.raises(OperatorError, match=message):
        check_watch_identity(tmp_path, changed)


def test_how_fast_a_watch_evaluates_may_change(tmp_path: Path) -> None:
    check_watch_identity(tmp_path, identity())
    write_watch_identity(tmp_path, identity())
    check_watch_identity(tmp_path, identity(num_samples_in_parallel=4, max_attempts=3, vllm={"port": 8000}))
