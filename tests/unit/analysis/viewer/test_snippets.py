"""The list of search results shows what matched, and where in the conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollyard.analysis.viewer.text_search import AFTER, BEFORE, snippet_of
from tests.support.rollout_files import row, write, write_failures
from tests.unit.analysis.viewer.opened_runs import get_json, open_index, viewer_client

CALL = {"type": "function_call", "name": "look", "arguments": '{"at": "the Door"}', "call_id": "1"}
RESULT = {"type": "function_call_output", "call_id": "1", "output": "a door\n\n  of oak, and a window"}
ANSWER = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is oak."}]}


def found_in(text: str, prompt: str = "play", **more: Any) -> Any:
    made = row(0, 0, 1.0, **more)
    made["responses_create_params"]["input"] = prompt
    made["response"]["output"] = [CALL, RESULT, ANSWER]
    return snippet_of(made, text)


@pytest.mark.parametrize(
    ("text", "event", "place", "match", "others"),
    [
        ("DOOR", 1, "call", "Door", 1),
        ("of oak", 2, "result", "of oak", 0),
        ('{"at":"the door"}', 1, "call", '{ "at": "the Door" }', 0),
        ('"level":3', None, "scores", '"level":3', 0),
    ],
    ids=["in any case", "on one line", "indented arguments", "outside the conversation"],
)
def test_a_snippet_is_the_first_part_with_the_text_and_counts_the_others(
    text: str, event: int | None, place: str, match: str, others: int
) -> None:
    found = found_in(text, scores={"level": 3})
    assert (found.event, found.place, found.match, found.others) == (event, place, match, others)
    assert (found.turn, found.name) == ((0, "") if event is None else (1, "look"))


@pytest.mark.parametrize(
    ("text", "prompt", "before", "after"),
    [
        ("of oak", "play", "a door ", ", and a window"),
        ("needle", "x" * 1000 + "needle" + "y" * 1000, "…" + "x" * BEFORE, "y" * AFTER + "…"),
        ("needle", "İİİ needle", "İİİ ", ""),
    ],
)
def test_a_match_is_shown_with_the_text_around_it(text: str, prompt: str, before: str, after: str) -> None:
    found = found_in(text, prompt)
    assert (found.before, found.match, found.after) == (before, text, after)


@pytest.mark.parametrize("text", ["", "nowhere"])
def test_a_text_that_is_nowhere_has_no_snippet(text: str) -> None:
    assert found_in(text) is None


async def test_search_results_have_snippets_and_other_lists_have_none(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [row(task, 0, 1.0) for task in range(3)])
    write_failures(path, [(9, 0, "timeout")])
    client = viewer_client(open_index(path))
    page = await get_json(client, "/api/runs/0/rollouts?q=PLAY%201")
    assert [(one["match"], one["place"]) for one in page["snippets"]] == [("play 1", "user")]
    assert (page["total"], page["searched"]) == (1, 1.0)
    assert (await get_json(client, "/api/runs/0/rollouts"))["snippets"] == []
