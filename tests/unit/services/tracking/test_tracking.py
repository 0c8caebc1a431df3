"""What is said of a rollout file to experiment trackers, before any of them is involved."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollyard.services.errors import OperatorError
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.store import StorePaths
from rollyard.services.tracking.reservoir_sample import COLUMNS, LONGEST, RolloutSample, conversation
from rollyard.services.tracking.rollout_metrics import RolloutMetrics
from rollyard.services.tracking.tail import rows
from rollyard.services.tracking.tracker import flat
from rollyard.services.types import Json
from tests.external.track.files import collection, row

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
KEYS = ("response", "responses_create_params", "timings", "success", "finish_reason", "_ng_task_index", "mask_sample")


def test_figures_are_means_over_the_measured_rollouts() -> None:
    figures = RolloutMetrics()
    for number in range(4):
        assert figures.add(row(number))
    metrics = figures.metrics({"timeout": 3})
    assert metrics["rollouts"] == 4 and metrics["reward/mean"] == 5.0 and metrics["success/rate"] == 0.5
    assert metrics["tool_calls/mean"] == 1.0 and metrics["output_tokens/mean"] == 7.0 and metrics["end/done"] == 1.0
    assert metrics["failed_attempts/timeout"] == 3


def test_errors_are_clustered_by_task_and_a_rate_of_0_has_a_bound() -> None:
    figures = RolloutMetrics()
    rewards = [[0.0, 0.0, 0.0], [1.0, 1.0], [1.0, 0.0, 1.0, 1.0]]
    for task, own in enumerate(rewards):
        for repeat, reward in enumerate(own):
            figures.add({"_ng_task_index": task, "_ng_rollout_index": repeat, "reward": reward, "success": False})
    metrics = figures.metrics({})
    mean = 5 / 9
    off = sum((sum(own) - len(own) * mean) ** 2 for own in rewards)
    assert metrics["reward/stderr"] == pytest.approx((off * 3 / 2) ** 0.5 / 9)
    assert (metrics["success/rate"], metrics["success/low"]) == (0.0, 0.0)
    assert (1 - metrics["success/high"]) ** 3 == pytest.approx(0.05)


def test_each_data_set_of_a_mixture_has_figures_of_its_own() -> None:
    figures = RolloutMetrics()
    for number in range(8):
        name = ("rooms", "sums")[number % 2]
        more = {"dataset_name": name, "agent_ref": {"name": name}, "success": number % 4 < 2}
        figures.add({"_ng_task_index": number, "reward": 10.0 * number if name == "rooms" else 1.0, **more})
    metrics = figures.metrics({})
    assert metrics["dataset/rooms/reward/mean"] == 30.0 and metrics["dataset/sums/success/rate"] == 0.5
    assert metrics["success/rate"] == 0.5
    assert "reward/mean" not in metrics  # rooms pay on another scale


@pytest.mark.parametrize("more", [{"reward": None}, {"reward": True}, {"reward": "1"}, {"mask_sample": True}])
def test_a_row_without_a_reward_or_masked_is_in_no_mean(more: Json) -> None:
    figures = RolloutMetrics()
    assert not figures.add(row(1, **more))
    assert figures.measured == 0


@given(st.dictionaries(st.sampled_from(KEYS), JSON))
def test_rows_of_any_shape_are_taken(more: dict[str, Any]) -> None:
    figures, sample = RolloutMetrics(), RolloutSample(3)
    read = {"reward": 1.0, **more}
    if figures.add(read):
        sample.offer(read)
        assert all(isinstance(value, int | float) for value in figures.metrics({}).values())
        assert len(sample.rows[0]) == len(COLUMNS)


def test_a_sample_holds_so_many_rows_of_the_whole_file_and_the_same_ones_again() -> None:
    def drawn() -> list[Any]:
        sample = RolloutSample(20)
        for number in range(400):
            sample.offer(row(number))
        return [cells[:2] for cells in sample.rows]

    tasks = [task for task, _ in drawn()]
    assert len(tasks) == 20 and tasks == sorted(tasks) and min(tasks) < 40 < 60 < max(tasks)
    assert drawn() == drawn()


def test_a_conversation_reads_in_order_and_ends_somewhere() -> None:
    text = conversation(row(1))
    assert text == 'user: Solve it.\n\ncall: step({"action": 1})\n\nresult: ##_#\n\nassistant: Done.'
    long = conversation(row(1, responses_create_params={"input": "x" * 2 * LONGEST}))
    assert len(long) < LONGEST + 100 and "more characters" in long


def test_nested_parameters_become_names_with_dots() -> None:
    assert flat({"a": {"b": 1, "c": [2]}, "d": None}) == {"a.b": 1, "a.c": "[2]", "d": None}


def test_a_torn_last_line_and_lines_that_are_no_objects_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"reward":1}\n[1]\nnonsense\n{"reward":2}\n{"rew')
    assert list(rows(path, follow=False)) == [{"reward": 1}, {"reward": 2}]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="cannot be read"):
        next(rows(tmp_path / "no.jsonl", follow=False))


def test_a_growing_file_is_followed_until_its_collection_ends(tmp_path: Path) -> None:
    paths = StorePaths(collection(tmp_path, 2))

    def says(state: Any) -> None:
        paths.status.write_text(CollectionProgress(9).status(state).model_dump_json())

    def more() -> None:
        with paths.output.open("ab") as file:
            file.write(orjson.dumps(row(7)) + b"\n")
        says("complete")

    says("running")
    found = []
    for read in rows(paths.output, follow=True):
        if read is None:
            threading.Thread(target=more).start()
        else:
            found.append((read["_ng_task_index"], read["_ng_rollout_index"]))
    assert found == [(0, 0), (0, 1), (1, 3)]


def test_a_status_left_behind_by_a_collection_that_was_ended_is_not_waited_for(tmp_path: Path) -> None:
    paths = StorePaths(collection(tmp_path, 2))
    old = CollectionProgress(9).status("running").model_copy(update={"updated": 0.0})
    paths.status.write_text(old.model_dump_json())
    assert None not in list(rows(paths.output, follow=True))
