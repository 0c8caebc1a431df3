"""With one bad endpoint of ten, all rollouts complete and few calls reach it. More faults: tests/faults/crash."""

from __future__ import annotations

import pytest

from tests.support.endpoint_matrix import play


@pytest.mark.parametrize(("kind", "midway"), [("malformed", False), ("empty_answer", True), ("refuses", True)])
async def test_one_bad_endpoint_of_ten_fails_no_rollout_and_gets_few_calls(kind: str, midway: bool) -> None:
    outcome = await play(kind, midway=midway, rollouts=40, parallel=6)
    assert (outcome.measured, outcome.wrong) == (40, 0)
    assert outcome.share < 0.05
