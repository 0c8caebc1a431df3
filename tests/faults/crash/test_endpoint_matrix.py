"""Bad endpoints in a pool: all rollouts are measured, and the bad endpoints get few calls."""

from __future__ import annotations

import pytest

from tests.support.endpoint_matrix import KINDS, play


@pytest.mark.parametrize("turned", [False, True], ids=["from the start", "on the way"])
@pytest.mark.parametrize("bad", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
async def test_bad_endpoints_of_ten_cost_no_rollout_and_few_calls(kind: str, bad: int, turned: bool) -> None:
    outcome = await play(kind, bad=bad, midway=turned)
    assert (outcome.measured, outcome.wrong) == (outcome.rollouts, 0), outcome
    assert outcome.share < 0.05, outcome
