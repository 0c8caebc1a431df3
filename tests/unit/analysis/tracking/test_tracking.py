"""What experiment trackers are sent about a rollout file, tested without a tracker."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.analysis.tracking import MAX_LENGTH, RolloutMetrics, RolloutSample, conversation, rows
from rollyard.records.errors import OperatorError
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.types import Json
from rollyard.services.rollouts.progress import CollectionProgress
from tests.external.track.files import collection, row


def test_metrics_are_means_over_the_measured_rollouts() -> None:
    accumulator = RolloutMetrics()
    assert all(accumulator.add(row(number)) for number in range(4))
    means = {"rollouts": 4, "reward/mean": 5.0, "success/rate": 0.5, "tool_calls/mean": 1.0, "output_tokens/mean": 7.0}
    assert means.items() <= accumulator.metrics({"timeout": 3}).items()
    assert {"end/done": 1.0, "failed_attempts/timeout": 3}.items() <= accumulator.metrics({"timeout": 3}).items()


def test_errors_are_clustered_by_task_and_a_rate_of_0_has_a_bound() -> None:
    accumulator = RolloutMetrics()
    tasks = [[0.0, 0.0, 0.0], [1.0, 1.0], [1.0, 0.0, 1.0, 1.0]]
    for task, rewards in enumerate(tasks):
        for repeat, reward in enumerate(rewards):
            accumulator.add({"_ng_task_index": task, "_ng_rollout_index": repeat, "reward": reward, "success": False})
    metrics = accumulator.metrics({})
    squares = sum((sum(rewards) - len(rewards) * 5 / 9) ** 2 for rewards in tasks)
    assert metrics["reward/stderr"] == pytest.approx((squares * 3 / 2) ** 0.5 / 9)
    assert (metrics["success/rate"], metrics["success/low"]) == (0.0, 0.0)
    assert (1 - metrics["success/high"]) ** 3 == pytest.approx(0.05)


def test_each_dataset_of_a_mixture_has_its_own_metrics() -> None:
    accumulator = RolloutMetrics()
    for number in range(8):
        name = ("rooms", "sums")[number % 2]
        more = {"dataset_name": name, "agent_ref": {"name": name}, "success": number % 4 < 2}
        accumulator.add({"_ng_task_index": number, "reward": 10.0 * number if name == "rooms" else 1.0, **more})
    metrics = accumulator.metrics({})
    means = {"dataset/rooms/reward/mean": 30.0, "dataset/sums/success/rate": 0.5, "success/rate": 0.5}
    assert means.items() <= metrics.items() and "reward/mean" not in metrics  # the reward scales differ


@pytest.mark.parametrize("more", [{"reward": None}, {"reward": True}, {"reward": "1"}, {"mask_sample": True}])
def test_a_masked_row_or_one_without_a_reward_is_excluded(more: Json) -> None:
    accumulator = RolloutMetrics()
    assert not accumulator.add(row(1, **more)) and accumulator.measured == 0


def test_a_sample_has_a_fixed_size_covers_the_file_and_is_reproducible() -> None:
    samples = RolloutSample(20), RolloutSample(20)
    for number in range(400):
        for sample in samples:
            sample.offer(row(number))
    tasks: list[Any] = [cells[0] for cells in samples[0].rows]
    assert len(tasks) == 20 and tasks == sorted(tasks) and min(tasks) < 40 < 60 < max(tasks)
    assert samples[0].rows == samples[1].rows


def test_a_conversation_is_in_order_and_truncated() -> None:
    text = conversation(row(1))
    assert text == 'user: Solve it.\n\ncall: step({"action": 1})\n\nresult: ##_#\n\nassistant: Done.'
    long = conversation(row(1, responses_create_params={"input": "x" * 2 * MAX_LENGTH}))
    assert len(long) < MAX_LENGTH + 100 and "more characters" in long


def test_invalid_lines_are_skipped_and_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"reward":1}\n[1]\nnonsense\n{"reward":2}\n{"rew')
    assert list(rows(path, follow=False)) == [{"reward": 1}, {"reward": 2}]
    with pytest.raises(OperatorError, match="cannot be read"):
        next(rows(tmp_path / "no.jsonl", follow=False))


def test_a_growing_file_is_followed_until_its_collection_ends(tmp_path: Path) -> None:
    paths = RolloutPaths(collection(tmp_path, 2))

    def append_row_and_finish() -> None:
        with paths.output.open("ab") as file:
            file.write(orjson.dumps(row(7)) + b"\n")
        paths.status.write_text(CollectionProgress(9).status("complete").model_dump_json())

    paths.status.write_text(CollectionProgress(9).status("running").model_dump_json())
    found = []
    for followed in rows(paths.output, follow=True):
        if followed is None:
            threading.Thread(target=append_row_and_finish).start()
        else:
            found.append((followed["_ng_task_index"], followed["_ng_rollout_index"]))
    assert found == [(0, 0), (0, 1), (1, 3)]
    # The stale status of a killed collection does not block.
    old = CollectionProgress(9).status("running").model_copy(update={"updated": 0.0})
    paths.status.write_text(old.model_dump_json())
    assert None not in list(rows(paths.output, follow=True))
