"""A text is found in the rows of a file, and the list shows what matched and where in the conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollyard.analysis.viewer.text_search import AFTER, BEFORE, Search, forms, snippet_of
from tests.support.rollout_files import row, write, write_failures
from tests.unit.analysis.viewer.opened_runs import get_json, open_index, viewer_client

WAIT_S = 120.0


def lines_with(path: Path, text: str) -> list[int]:
    """Numbers of the lines that contain the text."""
    data = path.read_bytes()
    found, searched = Search(path, text).progress(len(data), WAIT_S)
    assert searched == 1.0
    return [data[:offset].count(b"\n") for offset in found.tolist()]


def write_values(path: Path, *values: object) -> Path:
    path.write_bytes(b"".join(orjson.dumps(value) + b"\n" for value in values))
    return path


@pytest.mark.parametrize(
    ("text", "lines"), [("box", [0, 2]), ("BOX", [0, 2]), ("the Box", [0, 2]), ('"reward":1.5', [1]), ("box\nthe", [])]
)
def test_lines_are_found_in_any_case_as_they_are_in_the_file(tmp_path: Path, text: str, lines: list[int]) -> None:
    path = write_values(tmp_path / "x", {"a": "The box is here, a box"}, {"reward": 1.5}, {"a": "THE BOX"})
    assert lines_with(path, text) == lines


@pytest.mark.parametrize("text", ['he said "go"', "two\nlines", "back\\slash", "tab\there", "É und ß", "√ and 🎲"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_text_is_found_at_any_level_of_escaping(tmp_path: Path, text: str, ascii_only: bool) -> None:
    plain = json.dumps({"a": text}, ensure_ascii=ascii_only)
    nested = json.dumps({"output": plain}, ensure_ascii=ascii_only)
    path = tmp_path / "x"
    path.write_text(f"{{}}\n{plain}\n{nested}\n", encoding="utf-8")
    assert lines_with(path, text) == [1, 2]
    assert lines_with(path, text.swapcase() if text.isascii() else text.replace("É", "é")) == [1, 2]


@given(st.text(min_size=1, max_size=6), st.text(max_size=10), st.text(max_size=10))
def test_the_search_forms_of_any_text_match_it(text: str, before: str, after: str) -> None:
    line = orjson.dumps({"x": before + text + after}, option=orjson.OPT_APPEND_NEWLINE)
    assert any(form in line.lower() for form in forms(text))


def test_lines_longer_than_a_part_and_many_parts_are_searched(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"x" * 3_000_000 + b" needle\n" + b"y\n" * 1_000_000 + b"needle\n")
    assert lines_with(path, "needle") == [0, 1_000_001]


def test_appended_lines_are_searched_at_the_next_call(tmp_path: Path) -> None:
    path = write_values(tmp_path / "x", "needle")
    search = Search(path, "needle")
    assert len(search.progress(path.stat().st_size, WAIT_S)[0]) == 1
    with path.open("ab") as file:
        file.write(b'"needle"\n"torn needle')
    complete = path.read_bytes().rindex(b"\n") + 1
    found, searched = search.progress(complete, WAIT_S)
    assert (len(found), searched) == (2, 1.0)


def test_a_search_pauses_without_a_waiting_caller_and_resumes_at_the_next_call(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"needle\n" * 600_000)
    search = Search(path, "needle", pause_after_s=0.0)
    _, searched = search.progress(path.stat().st_size, WAIT_S)
    assert searched < 1.0
    search._pause_after_s = WAIT_S
    found, searched = search.progress(path.stat().st_size, WAIT_S)
    assert (len(found), searched) == (600_000, 1.0)


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
