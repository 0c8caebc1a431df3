"""A watch of checkpoints: each is evaluated once, and one table holds their results."""

from __future__ import annotations

import csv
from pathlib import Path
from threading import Event

import pytest

from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.headline import Headline
from rollyard.launchers.evaluation.plan import write_identity
from rollyard.launchers.evaluation.watch import (
    IDENTITY,
    CheckpointTable,
    EvaluatedCheckpoint,
    EvalWatch,
    check_watch_identity,
    identity_of_watch,
    open_source,
)
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.types import Json
from tests.support.rollout_files import write, write_manifest
from tests.unit.launchers.evaluation.checkpoint_files import checkpoint


class Watched:
    """The checkpoints of a run; `errors` are those of the next evaluations, by checkpoint."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.models: list[str] = []
        self.errors: dict[str, list[Exception]] = {}
        self.repeats = 2

    def checkpoint(self, step: int) -> Path:
        return checkpoint(self.root / f"checkpoints/step_{step}")

    def once(self, *, poll_s: float = 0.0, marker: str | None = None) -> list[str]:
        """Evaluate the checkpoints that are there now; return what was printed."""
        lines: list[str] = []
        source = open_source(str(self.root / "checkpoints"), self.root / "copies", "*", marker)
        config = EvalConfig(output_dir=self.root / "out")
        EvalWatch(config, source, self._evaluate, poll_s=poll_s, print_line=lines.append).run(Event(), once=True)
        return lines

    def rows(self) -> list[EvaluatedCheckpoint]:
        return CheckpointTable(self.root / "out").rows

    def _evaluate(self, config: EvalConfig) -> None:
        """Leave the files of an evaluation of one task with two rollouts."""
        self.models.append(str(config.model))
        if errors := self.errors.get(config.output_dir.name):
            raise errors.pop(0)
        config.output_dir.mkdir(parents=True, exist_ok=True)
        base: Json = {"responses_create_params": {"input": "question"}, "response": {"output": []}}
        base |= {"agent_ref": {"name": "agent"}, "_ng_task_index": 0}
        rows = [{**base, "_ng_rollout_index": repeat, "reward": 1.0 - repeat} for repeat in (0, 1)]
        write(config.output_dir / "rollouts.jsonl", rows)
        write_manifest(config.output_dir / "rollouts.jsonl", 1, self.repeats)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_each_checkpoint_is_evaluated_once_in_the_order_of_its_step(watched: Watched) -> None:
    for step in (100, 20, 3):
        watched.checkpoint(step)
    for _ in range(2):
        watched.once()
    assert watched.models == [f"vllm/{watched.root}/checkpoints/step_{step}" for step in (3, 20, 100)]
    assert [row.step for row in watched.rows()] == [3, 20, 100]


def test_a_failed_evaluation_is_tried_again_after_a_pause_and_not_marked_done(watched: Watched) -> None:
    watched.checkpoint(1)
    watched.errors["step_1"] = [RunError("vLLM: status 1")] * 2
    for _ in range(2):
        watched.once()
    (failed,) = watched.rows()
    assert (failed.headline, failed.tries, failed.error) == (None, 2, "vLLM: status 1")
    watched.once(poll_s=600.0)
    assert len(watched.models) == 2
    for _ in range(2):
        watched.once()
    (done,) = watched.rows()
    assert done.headline is not None and len(watched.models) == 3


def test_an_evaluation_with_missing_rollouts_is_not_done(watched: Watched) -> None:
    watched.checkpoint(1)
    watched.repeats = 3
    watched.once()
    (row,) = watched.rows()
    assert row.headline is None and "2 of 3" in row.error


def test_a_checkpoint_without_its_marker_waits(watched: Watched) -> None:
    folder = watched.checkpoint(1)
    line = watched.once(marker="DONE")[-1]
    assert line.startswith("step_1 ") and "DONE" in line
    (folder / "DONE").touch()
    watched.once(marker="DONE")
    assert len(watched.rows()) == 1


def test_a_checkpoint_that_cannot_be_served_does_not_block_the_others(watched: Watched) -> None:
    for step in (1, 2):
        watched.checkpoint(step)
    watched.errors["step_1"] = [OperatorError("Model architectures ['X'] are not supported")]
    watched.once()
    first, second = watched.rows()
    assert (first.headline, second.error) == (None, "") and "not supported" in first.error


def test_the_tables_show_metrics_with_intervals_and_leave_undefined_ones_empty(watched: Watched) -> None:
    watched.checkpoint(1)
    watched.once()
    text = (watched.root / "out/checkpoints.md").read_text()
    assert text.splitlines()[0].startswith("| step | checkpoint | rollouts | reward |")
    assert "| 1 | step_1 | 2 of 2 | 0.500" in text
    CheckpointTable(watched.root / "out").record("final", Headline(measured=0, expected=0, metrics={}))
    final, first = csv.DictReader((watched.root / "out/checkpoints.csv").read_text().splitlines())
    assert (first["step"], first["measured"], first["reward"], final["step"], final["reward"]) == (
        *("1", "2", "0.5"),
        *("", ""),
    )


def identity(address: str = "/checkpoints", **keys: object) -> Json:
    given = {"output_dir": "out", "environments": ["gsm8k"], **keys}
    return identity_of_watch(EvalConfig.model_validate(given), address)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (identity("/others"), "watch: '/checkpoints' .*'/others'"),
        (identity(num_repeats=4), "num_repeats: 1 .*4"),
        (identity(vllm={"dtype": "float32"}), "vllm.dtype: 'auto' .*'float32'"),
    ],
)
def test_a_watch_of_other_checkpoints_or_parameters_is_refused(tmp_path: Path, changed: Json, message: str) -> None:
    write_identity(tmp_path / IDENTITY, identity())
    with pytest.raises(OperatorError, match=message):
        check_watch_identity(tmp_path, changed)


def test_how_fast_a_watch_evaluates_may_change(tmp_path: Path) -> None:
    check_watch_identity(tmp_path, identity())
    write_identity(tmp_path / IDENTITY, identity())
    check_watch_identity(tmp_path, identity(num_samples_in_parallel=4, max_attempts=3, vllm={"port": 8000}))
