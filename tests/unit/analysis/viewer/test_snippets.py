"""The list of search results shows what matched, and where in the conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from rollyard.analysis.viewer.text_search import AFTER, BEFORE, snippet_of
from tests.support.rollout_files import row, write, write_failures
from tests.unit.analysis.viewer.opened_runs import get_json, open_index, viewer_client

CALL = {"type": "function_call", "name": "look", "arguments": '{"at": "the Door"}', "call_id": "1"}
RESULT = {"type": "function_call_output", "call_id": "1", "output": "a door\n\n  of oak, and a window"}
ANSWER = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is oak."}]}


def found_in(text: str, **more: Any) -> Any:
    made = row(0, 0, 1.0, **more)
    made["response"]["output"] = [CALL, RESULT, ANSWER]
    return snippet_of(made, text)


def test_a_snippet_is_the_first_event_with_the_text_in_any_case_and_counts_the_others() -> None:
    found = found_in("DOOR")
    assert (found.event, found.turn, found.place, found.name, found.match) == (1, 1, "call", "look", "Door")
    assert found.others == 1


def test_a_match_is_shown_on_one_line_with_the_text_around_it() -> None:
    found = found_in("of oak")
    assert (found.before, found.match, found.after) == ("a door ", "of oak", ", and a window")
    assert (found.place, found.turn, found.name) == ("result", 1, "look")


def test_long_texts_around_a_match_are_cut() -> None:
    made = row(0, 0, 1.0)
    made["responses_create_params"]["input"] = "x" * 1000 + "needle" + "y" * 1000
    found = snippet_of(made, "needle")
    assert found is not None
    assert (found.before, found.after) == ("…" + "x" * BEFORE, "y" * AFTER + "…")
    assert (found.place, found.turn) == ("user", 0)


def test_arguments_are_found_although_they_are_indented_to_be_read() -> None:
    found = found_in('{"at":"the door"}')
    assert (found.event, found.place, found.match) == (1, "call", '{ "at": "the Door" }')


def test_a_text_outside_the_conversation_is_shown_with_its_key() -> None:
    found = found_in('"level":3', scores={"level": 3})
    assert (found.event, found.place, found.match) == (None, "scores", '"level":3')


@pytest.mark.parametrize("text", ["", "nowhere"])
def test_a_text_that_is_nowhere_has_no_snippet(text: str) -> None:
    assert found_in(text) is None


def test_letters_whose_lower_case_is_longer_do_not_move_the_match() -> None:
    made = row(0, 0, 1.0)
    made["responses_create_params"]["input"] = "İİİ needle"
    found = snippet_of(made, "needle")
    assert found is not None and found.match == "needle"


async def test_search_results_have_snippets_and_other_lists_have_none(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [row(task, 0, 1.0) for task in range(3)])
    write_failures(path, [(9, 0, "timeout")])
    client: httpx.AsyncClient = viewer_client(open_index(path))
    page = await get_json(client, "/api/runs/0/rollouts?q=play%201")
    assert [(one["match"], one["place"]) for one in page["snippets"]] == [("play 1", "user")]
    assert (await get_json(client, "/api/runs/0/rollouts"))["snippets"] == []
