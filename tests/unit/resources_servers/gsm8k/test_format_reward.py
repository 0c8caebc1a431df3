"""GSM8K's reward for the requested format, in addition to that for the answer."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.gsm8k.app import server
from rollyard.services.server.settings import parse_settings
from tests.unit.resources_servers.answers.grading import in_process_server

ROW: Json = {"question": "How many?", "expected_answer": "18", "form": "chat"}
RIGHT, WRONG, EMPTY, UNCLOSED, NO_BOX = r"\boxed{18}", r"\boxed{17}", r"\boxed{}", r"\boxed{18", "The answer is 18."
TEXTS = (RIGHT, WRONG, EMPTY, UNCLOSED, NO_BOX)


async def verdicts(**settings: Any) -> list[Json]:
    async with in_process_server(server, **settings) as environment:
        return [await environment.verdict(ROW, text) for text in TEXTS]


async def test_the_rewards_of_ludic_are_a_setting() -> None:
    found = await verdicts(score="strict", format_reward=0.1, format_penalty=1.0)
    assert [one["reward"] for one in found] == [1.1, 0.1, -1.0, -1.0, -1.0]
    assert [one["parse_error"] for one in found] == [False, False, True, True, True]
    assert [one["success"] for one in found] == [True, False, False, False, False]


async def test_the_parts_of_the_reward_are_reported_by_name() -> None:
    found = await verdicts(score="strict", format_reward=0.1, format_penalty=1.0)
    assert found[0]["reward_components"] == {"correct": 1.0, "format": 0.1}
    assert found[4]["reward_components"] == {"correct": 0.0, "format": -1.0}
    assert all(one["reward"] == sum(one["reward_components"].values()) for one in found)


async def test_without_these_settings_the_reward_is_the_answer_s_alone() -> None:
    found = await verdicts()
    assert [one["reward"] for one in found] == [1.0, 0.0, 0.0, 0.0, 1.0]
    assert not any("reward_components" in one for one in found)


async def test_with_the_lenient_score_any_readable_answer_is_no_parse_error() -> None:
    found = await verdicts()
    assert [one["parse_error"] for one in found] == [False, False, True, True, False]


def test_two_ways_to_reward_the_format_are_refused() -> None:
    with pytest.raises(OperatorError, match=r"format_weight.*format_reward|format_reward.*format_weight"):
        parse_settings(server.Settings, {"entrypoint": "app.py", "format_weight": 0.1, "format_reward": 0.1}, "gsm8k")
