"""One endpoint of ten is bad: every rollout is measured and hardly a call goes there. All kinds: tests/faults/crash."""

from __future__ import annotations

import pytest

from tests.support.endpoint_matrix import play


@pytest.mark.parametrize(("kind", "turned"), [("malformed", False), ("empty_answer", True), ("refuses", True)])
async def test_a_bad_endpoint_of_ten_costs_no_rollout_and_few_calls(kind: str, turned: bool) -> None:
    outcome = await play(kind, midway=turned, rollouts=40, parallel=6)
    assert (outcome.measured, outcome.wrong) == (40, 0)
    assert outcome.share < 0.05
