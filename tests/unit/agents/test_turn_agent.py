"""The action in a model's message."""

from __future__ import annotations

import pytest

from rollyard.agents.turn_agent.app import ActionTag


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<a>1</a> <a>2</a>", "2"),
        ("<a>1 <a>2</a>", "2"),
        ("<a>1</a> and <a>2", "1"),
        ("<a></a>", ""),
        ("<b>1</b>", None),
        ("</a>1<a>", None),
        ("<a>" * 200_000, None),
    ],
)
def test_the_action_is_the_last_complete_tag(text: str, action: str | None) -> None:
    assert ActionTag("a").action_in(text) == action
