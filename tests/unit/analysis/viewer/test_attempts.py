"""Failed attempts in the viewer: their index, their list, what was said, where they failed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from rollyard.analysis.viewer import growing_index
from rollyard.analysis.viewer.attempts import attempt_router
from rollyard.analysis.viewer.export import export
from rollyard.analysis.viewer.growing_index import AttemptFile
from rollyard.analysis.viewer.library import FileIndex
from rollyard.records.types import Json
from tests.support.failed_attempts import CALL, RESULT, failed, partial
from tests.support.rollout_files import grid, write
from tests.unit.analysis.viewer.opened_runs import get_json, no_replay, open_index, viewer_client

ATTEMPTS = "/api/runs/0/attempts"


def opened(folder: Path, *rows: Json) -> FileIndex:
    path = write(folder / "rollouts.jsonl", grid([0, 1, 2], 2))
    write(folder / "rollouts_failures.jsonl", rows)
    return open_index(path)


def client_of(folder: Path, *rows: Json) -> httpx.AsyncClient:
    index = opened(folder, *rows)
    return viewer_client(index, attempt_router(index, no_replay))


async def test_a_failed_attempt_shows_what_was_said_and_where_it_failed(tmp_path: Path) -> None:
    view = await get_json(client_of(tmp_path, failed(1, 0, partial=partial([CALL], stage_s=2.5))), f"{ATTEMPTS}/1/0/0")
    assert [event["speaker"] for event in view["events"]] == ["user", "call", "failure"]
    end = view["events"][-1]
    assert (end["name"], end["call"], end["turn"]) == ("timeout", "a", 1)
    assert re.fullmatch(r".*\b2\.5 s .*\benvironment .*\bstep\.\n\nlate", end["text"])
    assert view["facts"]["level"] == 3 and view["measured"] and view["note"] == ""


async def test_each_attempt_at_a_rollout_has_its_own_page(tmp_path: Path) -> None:
    rows = [failed(1, 0, 0, partial=partial([CALL])), failed(2, 0), failed(1, 0, 1, partial=partial([CALL, RESULT]))]
    client = client_of(tmp_path, *rows)
    views = [await get_json(client, f"{ATTEMPTS}/1/0/{at}") for at in range(2)]
    await get_json(client, f"{ATTEMPTS}/1/0/2", 404)
    assert [(len(view["events"]), view["line"]["attempt"], view["others"]) for view in views] == [(3, 0, 2), (4, 1, 2)]


async def test_the_list_has_the_latest_first_and_can_be_filtered_by_kind(tmp_path: Path) -> None:
    rows = [failed(1, 0, 0), failed(2, 1, 0, failure_kind="server_error"), failed(1, 0, 1, partial=partial([CALL]))]
    client = client_of(tmp_path, *rows)
    everything, errors, page = [
        await get_json(client, f"{ATTEMPTS}{query}") for query in ("", "?kind=server_error", "?start=1&limit=1")
    ]
    found = [(line["task"], line["at"], line["has_conversation"]) for line in everything["lines"]]
    assert found == [(1, 1, True), (2, 0, False), (1, 0, False)]
    assert everything["kinds"] == {"timeout": 2, "server_error": 1}
    assert [line["task"] for line in errors["lines"]] == [2] == [line["task"] for line in page["lines"]]


async def test_a_gap_is_shown_in_its_place_and_later_turns_keep_their_numbers(tmp_path: Path) -> None:
    output = [{**item, "call_id": f"call {number}"} for number in (1, 9) for item in (CALL, RESULT)]
    record = partial(output, stage="model", turn=10, omitted={"items": 14, "after": 3})
    events = (await get_json(client_of(tmp_path, failed(1, 0, partial=record)), f"{ATTEMPTS}/1/0/0"))["events"]
    assert [(event["speaker"], event["turn"]) for event in events] == [
        *(("user", 0), ("call", 1), ("result", 1), ("other", 1), ("call", 9), ("result", 9), ("failure", 10))
    ]
    assert events[3]["text"] == "14 items"


@pytest.mark.parametrize(
    "nonsense",
    [
        None,
        7,
        [],
        {"row": 7},
        {"row": {"response": 7, "responses_create_params": []}, "omitted": 3},
        {"row": {"response": {"output": [None, 7]}}, "turn": -1, "omitted": {"items": "x", "after": {}}},
        {"row": {"response": {"output": [CALL]}}, "omitted": {"items": 5, "after": 10**9}, "stage": {}, "turn": 1e99},
    ],
)
async def test_a_damaged_or_missing_record_breaks_no_page(tmp_path: Path, nonsense: Any) -> None:
    client = client_of(tmp_path, failed(1, 0, partial=nonsense))
    view = await get_json(client, f"{ATTEMPTS}/1/0/0")
    for path in (ATTEMPTS, "/api/runs/0/rollouts/1/0"):
        await get_json(client, path)
    assert view["line"]["detail"] == "late" and (view["events"] or view["note"])


def test_an_exported_page_has_the_conversations_of_failed_attempts_and_not_where_the_file_was(tmp_path: Path) -> None:
    page = export(opened(tmp_path, failed(1, 0, partial=partial([{**CALL, "name": "a rare name"}]))), no_replay, 10)
    data = orjson.loads(page.split(b'id="embedded">')[1].split(b"</script>")[0])
    assert data["attempts"]["0/1/0/0"]["events"][1]["name"] == "a rare name"
    assert data["overview"]["runs"][0]["absolute_path"] == ""


async def test_nothing_of_a_failed_attempt_is_part_of_the_numbers(tmp_path: Path) -> None:
    solved = partial([CALL, {**RESULT, "output": '{"reward": 100.0, "done": true}'}])
    numbers = []
    for name, row in (("without", failed(1, 0)), ("with", failed(1, 0, partial={**solved, "reward": 100.0}))):
        client = client_of(tmp_path / name, row)
        profile = (await get_json(client, "/api/runs/0/profile"))["profile"]
        shown = {key: profile[key] for key in ("rewards", "coverage", "failures", "tokens")}
        numbers.append((shown, (await get_json(client, "/api/runs/0/rollouts"))["lines"]))
    assert numbers[0] == numbers[1]


FAILED = {
    "_ng_task_index": 3,
    "_ng_rollout_index": 1,
    "failure_kind": "timeout",
    "server": "environment",
    "detail": "late",
}
LINE = orjson.dumps(FAILED) + b"\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x_failures.jsonl"


def append(path: Path, *lines: bytes) -> None:
    with path.open("ab") as file:
        file.writelines(lines)


def test_attempts_are_read_as_they_are_written_and_a_partial_line_once_complete(path: Path) -> None:
    file = AttemptFile(path)
    assert not file.advance()
    append(path, LINE, LINE[:20])
    assert file.advance() and len(file.of(3, 1)) == 1
    assert not file.advance()
    append(path, LINE[20:])
    assert file.advance()
    found = [(attempt.kind, attempt.server, attempt.detail) for attempt in file.of(3, 1)]
    assert found == [("timeout", "environment", "late")] * 2 and file.of(3, 2) == []


def test_invalid_lines_are_skipped(path: Path) -> None:
    append(path, b"nonsense\n", b"[1]\n", b'{"_ng_task_index": "3"}\n', LINE)
    file = AttemptFile(path)
    file.advance()
    assert len(file.failed.task) == 1


def test_a_long_file_is_read_in_steps(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing_index, "_STEP", 300)
    append(path, *[LINE] * 20)
    file, steps = AttemptFile(path), 1
    file.advance()
    while file.unread_bytes:
        file.advance()
        steps += 1
    assert (len(file.of(3, 1)), steps > 3) == (20, True)


def test_the_attempts_of_a_removed_file_are_dropped(path: Path) -> None:
    append(path, LINE)
    file = AttemptFile(path)
    file.advance()
    path.unlink()
    assert file.advance() and file.of(3, 1) == []
