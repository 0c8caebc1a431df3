"""Groups of rollouts have the shares and intervals that the general estimators compute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rollyard.analysis.metrics.estimators import clustered_mean
from rollyard.analysis.metrics.per_task import Groups, share_of_tasks
from tests.support.rollout_files import grid, load_run, random_rows


def test_the_share_of_a_group_is_the_clustered_mean_of_its_indicator(tmp_path: Path) -> None:
    run = load_run(tmp_path, random_rows(20, 8)[:150])
    assert run.by_task is not None
    groups = Groups.of(run.columns, run.solved, run.by_task.starts)
    for calls in range(1, 12):
        mask = run.columns.tool_calls == calls
        expected = clustered_mean(mask.astype(float), run.by_task.starts, is_share=True)
        found = groups.share(np.flatnonzero(mask))
        for name in ("mean", "stderr", "low", "high"):
            assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-12)


def test_a_group_with_all_or_no_rollouts_has_an_exact_bound_instead_of_a_point(tmp_path: Path) -> None:
    run = load_run(tmp_path, grid([2] * 10, 2))
    assert run.by_task is not None
    groups = Groups.of(run.columns, run.solved, run.by_task.starts)
    every, none = groups.share(np.arange(20)), groups.share(np.arange(0))
    assert [every.low, every.high] == pytest.approx([0.05**0.1, 1.0])
    assert [none.low, none.high] == pytest.approx([0.0, 1 - 0.05**0.1])


def test_shares_of_tasks_have_wilsons_interval_or_the_exact_bound() -> None:
    half, none = share_of_tasks(5, 10), share_of_tasks(0, 10)
    assert half is not None and none is not None
    assert [half.low, half.high] == pytest.approx([0.2366, 0.7634], abs=1e-4)
    assert [none.low, none.high] == pytest.approx([0.0, 1 - 0.05**0.1])
    assert share_of_tasks(0, 0) is None
