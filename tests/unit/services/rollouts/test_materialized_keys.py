"""Materialized inputs and results contain no credentials."""

from __future__ import annotations

from typing import Any, cast

import orjson
import pytest

from rollyard.records.rollout_types import RolloutRow
from rollyard.services.rollouts.run_answer import encode_line, without_keys

KEY = "sk-1234-of-this-row"


@pytest.mark.parametrize(
    "row",
    [
        {"policy_api_key": KEY, "policy_base_url": "http://host/v1"},
        {"policy_base_url": [f"http://me:{KEY}@host/v1"]},
        {"responses_create_params": {"input": "Hi", "extra_headers": {"x-tenant": KEY}}},
    ],
)
def test_a_key_of_a_row_is_masked(row: dict[str, object]) -> None:
    assert KEY.encode() not in without_keys(orjson.dumps(row))


def test_a_row_without_keys_is_written_as_it_was_sent() -> None:
    task = {"key": "C major", "token": "ab", "responses_create_params": {"input": f"api_key={KEY}", "temperature": 0.5}}
    assert without_keys(orjson.dumps(task)) == orjson.dumps(task)


@pytest.mark.parametrize(
    "params", [{"extra_headers": {"x-tenant": KEY}}, {"api_key": KEY}, {"extra_body": {"key": KEY}}]
)
def test_a_key_in_the_parameters_of_a_row_is_not_in_its_result(params: Any) -> None:
    row = {"responses_create_params": {"input": "Hi", "prompt_cache_key": "s", **params}, "reward": 1.0}
    line = encode_line(cast(RolloutRow, row), "agent")
    assert KEY.encode() not in line and b'"prompt_cache_key":"s"' in line
