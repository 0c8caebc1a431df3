"""Figures and numbers fit into their space and are readable at every width."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest

from rollyard.records.types import Json
from tests.external.browser.browser_tab import Open
from tests.external.browser.viewer import viewing

BOARD = "SFFF\nFHFH\n\nThe board:\n##_##\n#_XO#\n##P#\nYou move next."


def _row(task: int, repeat: int) -> Json:
    usage = {"input_tokens": 123_456_789, "output_tokens": 98_765_432, "total_tokens": 222_222_221}
    return {
        "_ng_task_index": task,
        "_ng_rollout_index": repeat,
        "reward": (-1) ** repeat * 123_456.789 * (task + 1 + repeat),
        "success": bool(repeat),
        "finish_reason": ["max_output_tokens_reached", "environment_closed_the_episode"][repeat],
        "agent_ref": {"name": f"a_rather_long_name_of_an_agent_{task % 2}"},
        "responses_create_params": {"input": [{"role": "user", "content": BOARD}]},
        "response": {"output": [], "usage": usage},
        "timings": {"total_s": 86_400.0, "model_s": 86_000.0, "a_stage_with_a_long_name_s": 400.0},
    }


@pytest.fixture(scope="module")
def large_values(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("large") / "large.jsonl"
    path.write_bytes(b"".join(orjson.dumps(_row(task, repeat)) + b"\n" for task in range(6) for repeat in range(2)))
    with viewing([path], path.parent) as url:
        yield url


def test_boards_in_messages_are_monospaced_and_prose_is_not(open_tab: Open, large_values: str) -> None:
    tab = open_tab("#/runs/0/tasks/0/0", at=large_values)
    parts = tab.find("article.user .text > span")
    shown = {text: "mono" in font for text, font in zip(
        parts.all_inner_texts(),
        parts.evaluate_all("all => all.map((one) => getComputedStyle(one).fontFamily)"),
        strict=True,
    )}  # fmt: skip
    assert shown == {
        "SFFF\nFHFH": True,
        "\nThe board:": False,
        "##_##\n#_XO#\n##P#": True,
        "You move next.": False,
    }
