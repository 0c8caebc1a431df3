"""Figures of a GSM8K evaluation."""

from __future__ import annotations

from typing import Any

from rollyard.resources_servers.gsm8k.rollout_log import reduce_rollouts


def rollout(answer: str | None, *, success: bool = False, tokens: int | None = 10) -> dict[str, Any]:
    usage = None if tokens is None else {"output_tokens": tokens}
    return {"response": {"output": [], "usage": usage}, "extracted_answer": answer, "success": success, "reward": 0.0}


def test_rates_are_shares_of_all_rollouts() -> None:
    found = reduce_rollouts([rollout("18", success=True), rollout("17"), rollout(None), rollout(None)])
    assert (found.correct_rate, found.parse_err_rate) == (0.25, 0.5)


def test_lengths_cover_the_rollouts_with_usage() -> None:
    found = reduce_rollouts([rollout("1", tokens=10), rollout("1", tokens=20), rollout("1", tokens=None)])
    assert (found.avg_completion_length, found.total_completion_tokens) == (15.0, 30)


def test_an_endpoint_without_usage_has_no_mean_length() -> None:
    assert "avg_completion_length: unknown" in reduce_rollouts([rollout("1", tokens=None)]).lines()


def test_no_rollouts_have_rates_of_zero() -> None:
    assert reduce_rollouts([]).correct_rate == 0.0


def test_figures_are_printed_under_the_names_of_both_scripts() -> None:
    names = [line.partition(":")[0] for line in reduce_rollouts([rollout("1")]).lines()]
    assert {"accuracy", "correct_rate", "parse_err_rate", "avg_completion_length", "total_completion_tokens"} <= {
        *names
    }
