"""Failed attempts in the viewer: their list, what was said, where they failed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from rollyard.analysis.viewer.attempts import attempt_router
from rollyard.analysis.viewer.export import export
from rollyard.analysis.viewer.findings import FindingIndex
from rollyard.analysis.viewer.library import FileIndex
from rollyard.records.types import Json
from tests.support.failed_attempts import CALL, RESULT, failed, partial
from tests.support.rollout_files import grid, write
from tests.unit.analysis.viewer.opened_runs import get_json, no_replay, open_index, viewer_client


def opened(folder: Path, *rows: Json) -> FileIndex:
    path = write(folder / "rollouts.jsonl", grid([0, 1, 2], 2))
    write(folder / "rollouts_failures.jsonl", rows)
    return open_index(path)


def client_of(index: FileIndex) -> httpx.AsyncClient:
    return viewer_client(index, attempt_router(index, FindingIndex(index.find), no_replay))


async def test_a_failed_attempt_shows_what_was_said_and_where_it_failed(tmp_path: Path) -> None:
    async with client_of(opened(tmp_path, failed(1, 0, partial=partial([CALL], stage_s=2.5)))) as client:
        view = await get_json(client, "/api/runs/0/attempts/1/0/0")
    assert [event["speaker"] for event in view["events"]] == ["user", "call", "failure"]
    end = view["events"][-1]
    assert (end["name"], end["call"], end["turn"]) == ("timeout", "a", 1)
    assert re.fullmatch(r".*\b2\.5 s .*\benvironment .*\bstep\.\n\nlate", end["text"])
    assert view["facts"]["level"] == 3 and view["measured"] and view["note"] == ""


async def test_each_attempt_at_a_rollout_has_its_own_page(tmp_path: Path) -> None:
    rows = [failed(1, 0, 0, partial=partial([CALL])), failed(2, 0), failed(1, 0, 1, partial=partial([CALL, RESULT]))]
    async with client_of(opened(tmp_path, *rows)) as client:
        views = [await get_json(client, f"/api/runs/0/attempts/1/0/{at}") for at in range(2)]
        await get_json(client, "/api/runs/0/attempts/1/0/2", 404)
    assert [(len(view["events"]), view["line"]["attempt"], view["others"]) for view in views] == [(3, 0, 2), (4, 1, 2)]


async def test_an_attempt_without_a_conversation_says_why(tmp_path: Path) -> None:
    async with client_of(opened(tmp_path, failed(1, 0))) as client:
        view = await get_json(client, "/api/runs/0/attempts/1/0/0")
    assert view["events"] == [] and "not recorded" in view["note"]


async def test_the_list_has_the_latest_first_and_can_be_filtered_by_kind(tmp_path: Path) -> None:
    rows = [failed(1, 0, 0), failed(2, 1, 0, failure_kind="server_error"), failed(1, 0, 1, partial=partial([CALL]))]
    async with client_of(opened(tmp_path, *rows)) as client:
        everything = await get_json(client, "/api/runs/0/attempts")
        errors = await get_json(client, "/api/runs/0/attempts?kind=server_error")
        page = await get_json(client, "/api/runs/0/attempts?start=1&limit=1")
    assert [(line["task"], line["at"], line["has_conversation"]) for line in everything["lines"]] == [
        (1, 1, True),
        (2, 0, False),
        (1, 0, False),
    ]
    assert everything["kinds"] == {"timeout": 2, "server_error": 1}
    assert [line["task"] for line in errors["lines"]] == [2] == [line["task"] for line in page["lines"]]


async def test_a_gap_is_shown_in_its_place_and_later_turns_keep_their_numbers(tmp_path: Path) -> None:
    turns = [{**CALL, "call_id": f"call {number}"} for number in (1, 9)]
    results = [{**RESULT, "call_id": call["call_id"]} for call in turns]
    output = [turns[0], results[0], turns[1], results[1]]
    record = partial(output, stage="model", turn=10, omitted={"items": 14, "after": 3})
    async with client_of(opened(tmp_path, failed(1, 0, partial=record))) as client:
        events = (await get_json(client, "/api/runs/0/attempts/1/0/0"))["events"]
    assert [(event["speaker"], event["turn"]) for event in events] == [
        ("user", 0),
        ("call", 1),
        ("result", 1),
        ("other", 1),
        ("call", 9),
        ("result", 9),
        ("failure", 10),
    ]
    assert events[3]["text"] == "14 items"


@pytest.mark.parametrize(
    "nonsense",
    [
        7,
        [],
        {"row": 7},
        {"row": {"response": 7, "responses_create_params": []}, "timings": [7, ["model"]], "omitted": 3},
        {"row": {"response": {"output": [None, 7]}}, "turn": -1, "omitted": {"items": "x", "after": {}}},
        {"row": {"response": {"output": [CALL]}}, "omitted": {"items": 5, "after": 10**9}, "stage": {}, "turn": 1e99},
    ],
)
async def test_a_damaged_record_breaks_no_page(tmp_path: Path, nonsense: Any) -> None:
    async with client_of(opened(tmp_path, failed(1, 0, partial=nonsense))) as client:
        view = await get_json(client, "/api/runs/0/attempts/1/0/0")
        await get_json(client, "/api/runs/0/attempts")
        await get_json(client, "/api/runs/0/rollouts/1/0")
    assert view["line"]["detail"] == "late"


async def test_the_time_of_each_turn_is_shown(tmp_path: Path) -> None:
    timings = [["seed", 0.1], ["model", 1.0], ["tool", 0.25], ["tool", 0.25], ["model", 2.0]]
    record = partial([CALL], timings=timings, stage="model", turn=3, stage_s=9.0)
    async with client_of(opened(tmp_path, failed(1, 0, partial=record))) as client:
        turns = (await get_json(client, "/api/runs/0/attempts/1/0/0"))["turns"]
    assert [(turn["turn"], turn["model_s"], turn["tools_s"]) for turn in turns] == [
        (1, 1.0, 0.5),
        (2, 2.0, 0.0),
        (3, None, 0.0),
    ]


def test_an_exported_page_contains_the_conversations_of_failed_attempts(tmp_path: Path) -> None:
    index = opened(tmp_path, failed(1, 0, partial=partial([{**CALL, "name": "a very rare name"}])))
    page = export(index, no_replay, 10)
    data = page.split(b'id="embedded">')[1].split(b"</script>")[0]
    attempts = orjson.loads(data)["attempts"]
    assert attempts["0/1/0/0"]["events"][1]["name"] == "a very rare name"


async def test_nothing_of_a_failed_attempt_is_part_of_the_numbers(tmp_path: Path) -> None:
    (without := tmp_path / "without").mkdir()
    (recorded := tmp_path / "with").mkdir()
    solved = [CALL, {**RESULT, "output": '{"reward": 100.0, "done": true}'}]
    numbers = []
    plain = failed(1, 0)
    for folder, row in ((without, plain), (recorded, {**plain, "partial": {**partial(solved), "reward": 100.0}})):
        async with client_of(opened(folder, row)) as client:
            profile = (await get_json(client, "/api/runs/0/profile"))["profile"]
            rollouts = await get_json(client, "/api/runs/0/rollouts")
        profile.pop("path", None)
        numbers.append(
            ({key: profile[key] for key in ("rewards", "coverage", "failures", "tokens")}, rollouts["lines"])
        )
    assert numbers[0] == numbers[1]


def test_an_exported_page_does_not_say_where_the_file_was(tmp_path: Path) -> None:
    page = export(opened(tmp_path, failed(1, 0)), no_replay, 10)
    overview = orjson.loads(page.split(b'id="embedded">')[1].split(b"</script>")[0])["overview"]
    assert overview["runs"][0]["absolute_path"] == ""
