"""The record of an agent's running episodes: keys of their rows, durations of stages, and when an episode is stuck."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.agents.episode import ActiveEpisodes, EpisodeState, is_stuck
from rollyard.records.activity import Stage


@pytest.mark.parametrize("index", ["7", True, 1.5, None, [7], {}])
def test_an_index_that_is_not_an_integer_becomes_none(index: Any) -> None:
    active = ActiveEpisodes("agent", environment="environment", model="model")
    with active.one("e", {"_ng_task_index": index}):
        assert active.now(None).episodes[0].task is None


@pytest.mark.parametrize(
    ("stage_s", "median_s", "stuck"),
    [
        *((29.0, 0.1, False), (31.0, 0.1, True)),
        *((99.0, 10.0, False), (101.0, 10.0, True)),
        *((299.0, None, False), (301.0, None, True)),
    ],
)
def test_stuck_means_over_30_s_and_over_ten_times_the_median_or_over_five_minutes_without_a_median(
    stage_s: float, median_s: float | None, stuck: bool
) -> None:
    assert is_stuck(stage_s, median_s) is stuck


def test_the_median_covers_the_last_256_durations_of_that_stage() -> None:
    active = ActiveEpisodes("agent", environment="environment", model="model")
    with active.one("e", {}) as state:
        record_durations(state, "tool", [1.0] * 300 + [4.0] * 256)
        record_durations(state, "model", [9.0])
        state.enter("tool", "environment")
        (stage,) = active.now(None).stages
    assert stage.median_s == pytest.approx(4.0, abs=0.1)


def record_durations(state: EpisodeState, stage: Stage, seconds: list[float]) -> None:
    for duration in seconds:
        state.finish(stage, state.enter(stage, "environment") - duration)
