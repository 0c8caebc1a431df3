"""GET and POST /api/runs/{run}/notes, and notes as columns, filters and facets of the list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from rollyard.analysis.viewer.field_routes import field_router
from rollyard.analysis.viewer.library import FileIndex
from rollyard.analysis.viewer.note_routes import note_router
from rollyard.records.audit import AuditLine, Origin
from tests.support.rollout_files import row, write, write_failures
from tests.unit.analysis.viewer.opened_runs import get_json, open_index, viewer_client
from tests.unit.records.note_rows import answered, record, rows, write_notes

ROWS = rows()
NOTES = "/api/runs/0/notes"
THEM = Origin(address="192.0.2.1:5", uid=7, plane="control")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "x.jsonl", ROWS)


@pytest.fixture
def notes(path: Path) -> Path:
    """Where the notes on the file are, or would be."""
    return path.with_name("x_notes.jsonl")


@pytest.fixture
def index(path: Path) -> FileIndex:
    return open_index(path)


@pytest.fixture
def client(index: FileIndex) -> httpx.AsyncClient:
    return client_of(index)


def client_of(file_index: FileIndex, *, read_only: bool = False) -> httpx.AsyncClient:
    find = file_index.find
    return viewer_client(
        file_index, field_router(find), note_router(find, lambda _: THEM, author="me", read_only=read_only)
    )


async def post(client: httpx.AsyncClient, status: int = 200, task: int = 0, repeat: int = 0, **fields: Any) -> Any:
    response = await client.post(NOTES, json={"task": task, "repeat": repeat, **fields})
    assert response.status_code == status, response.text
    return response.json()


async def get(client: httpx.AsyncClient, path: str, **params: Any) -> Any:
    return await get_json(client, str(httpx.URL(f"/api/runs/0/{path}", params=params)))


def labelled(view: Any) -> list[tuple[int, int, list[str]]]:
    """Task, repeat and labels of the rollouts in a response."""
    return [(one["task"], one["repeat"], [each["label"] for each in one["labels"]]) for one in view["rollouts"]]


async def test_what_one_viewer_writes_another_one_shows(path: Path, client: httpx.AsyncClient) -> None:
    theirs = client_of(open_index(path))
    before = await get(theirs, "notes")
    await post(client, kind="label", label="loop", author="ann")
    await post(client, kind="override", verdict="wrong", reason="guessed")
    written = await post(client, task=1, repeat=1, kind="note", text="look")
    after = await get(theirs, "notes", since=before["version"])
    same = await get(theirs, "notes", since=after["version"])
    assert (before["rollouts"], before["complete"], same["rollouts"], same["complete"]) == ([], True, [], False)
    assert labelled(after) == [(0, 0, ["loop"]), (1, 1, [])]
    first, second = after["rollouts"]
    assert [(one["author"], one["verdict"], one["reason"]) for one in first["verdicts"]] == [("me", "wrong", "guessed")]
    assert second == written["rollout"]
    assert after["labels"] == [{"label": "loop", "rollouts": 1}]


async def test_each_note_has_a_line_in_the_audit_log_with_who_was_connected_whatever_author_it_names(
    path: Path, notes: Path, client: httpx.AsyncClient
) -> None:
    written = await post(client, kind="label", label="loop", author="ann")
    removed = await post(client, kind="removal", removes=written["id"])
    await post(client, status=422, kind="label")
    log = path.with_name("x_audit.jsonl").read_text()
    lines = [AuditLine.model_validate_json(line) for line in log.splitlines()]
    assert [(line.detail["kind"], line.detail["author"]) for line in lines] == [("label", "ann"), ("removal", "me")]
    assert [line.detail["id"] for line in lines] == [written["id"], removed["id"]]
    assert all(line.origin == THEM for line in lines)


async def test_a_removal_reaches_other_viewers(client: httpx.AsyncClient) -> None:
    written = await post(client, kind="label", label="loop")
    version = (await get(client, "notes"))["version"]
    removed = await post(client, kind="removal", removes=written["id"])
    assert removed["rollout"]["labels"] == []
    after = await get(client, "notes", since=version)
    assert after["complete"] and labelled(after) == []


async def test_notes_follow_their_rollouts_when_the_file_is_written_again_in_another_order(
    path: Path, index: FileIndex, client: httpx.AsyncClient
) -> None:
    await post(client, task=2, repeat=1, kind="label", label="loop")
    version = (await get(client, "notes"))["version"]
    write(path, [{**one, "_ng_task_index": 2 - one["_ng_task_index"]} for one in ROWS[::-1]], tail=b" \n")
    index.read_through()
    after = await get(client, "notes", since=version)
    assert after["complete"] and labelled(after) == [(0, 1, ["loop"])]


async def test_a_rollout_that_was_collected_again_has_lost_its_notes_and_the_page_says_so(
    path: Path, client: httpx.AsyncClient
) -> None:
    write_notes(path, record(answered(0, 0, "an earlier response"), "label", label="loop"))
    found = await get(client, "notes")
    assert (found["rollouts"], found["lost"]) == ([], 1)


async def test_notes_of_rows_that_are_still_to_come_appear_with_them(
    path: Path, index: FileIndex, client: httpx.AsyncClient
) -> None:
    write_notes(path, record(late := answered(7, 0, "late"), "label", label="loop"))
    before = await get(client, "notes")
    write(path, [*ROWS, late])
    index.read_through()
    after = await get(client, "notes", since=before["version"])
    assert (before["lost"], after["lost"], labelled(after)) == (1, 0, [(7, 0, ["loop"])])


async def test_a_rollout_without_a_reward_can_be_labelled_and_one_without_a_row_cannot(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [*ROWS, row(3, 0, None)])
    write_failures(path, [(9, 0, "timeout")])
    client = client_of(open_index(path))
    await post(client, task=3, kind="label", label="masked")
    await post(client, 404, task=9, kind="label", label="masked")
    assert labelled(await get(client, "notes")) == [(3, 0, ["masked"])]


async def test_the_list_shows_filters_and_sorts_by_labels_and_verdicts(client: httpx.AsyncClient) -> None:
    for task, label in ((0, "loop"), (2, "give-up"), (2, "loop")):
        await post(client, task=task, kind="label", label=label)
    await post(client, task=1, kind="override", verdict="wrong")
    page = await get(client, "rollouts", where='"loop" in labels', columns="labels,override,annotators")
    await post(client, task=1, kind="label", label="loop")
    again = await get(client, "rollouts", where='"loop" in labels')
    ranked = await get(client, "rollouts", sort="override", columns="override")
    facet, verdicts = [await get(client, "facet", key=key) for key in ("labels", "override")]
    assert page["cells"] == [[["loop"], None, ["me"]], [["give-up", "loop"], None, ["me"]]]
    assert (page["total"], again["total"], ranked["cells"][0]) == (2, 3, ["wrong"])
    values = [(one["value"], one["where"], one["rollouts"]) for one in facet["values"]]
    assert values == [("loop", '"loop" in labels', 3), ("give-up", '"give-up" in labels', 1)]
    assert (facet["rollouts"], facet["missing"]) == (6, 3)
    assert [one["where"] for one in verdicts["values"]] == ['override == "wrong"']
    assert {"labels", "override", "annotators"} <= set((await get(client, "keys"))["computed"])


async def test_read_only_refuses_every_record_and_shows_the_notes(path: Path, notes: Path) -> None:
    write_notes(path, record(ROWS[0], "label", label="loop"))
    before = notes.read_bytes()
    client = client_of(open_index(path), read_only=True)
    refused = await post(client, 403, kind="label", label="a")
    found = await get(client, "notes")
    assert "--read-only" in refused["detail"] and "--read-only" in found["why_read_only"]
    assert (labelled(found), notes.read_bytes()) == ([(0, 0, ["loop"])], before)


@pytest.mark.parametrize(
    "headers", [{"origin": "http://127.0.0.1:9999"}, {"sec-fetch-site": "cross-site"}, {"content-type": "text/plain"}]
)
async def test_a_page_of_another_origin_cannot_write(
    client: httpx.AsyncClient, notes: Path, headers: dict[str, str]
) -> None:
    body = b'{"task": 0, "repeat": 0, "kind": "label", "label": "evil"}'
    response = await client.post(NOTES, content=body, headers={"content-type": "application/json", **headers})
    assert response.status_code in (403, 415) and not notes.exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "drawing"}, "kind"),
        ({"kind": "label"}, "label"),
        ({"kind": "label", "label": "two\nlines"}, "label"),
        ({"kind": "label", "label": " "}, "label"),
        ({"kind": "note", "text": ""}, "text"),
        ({"kind": "override", "verdict": "maybe"}, "verdict"),
        ({"kind": "override", "verdict": True}, "verdict"),
        ({"kind": "label", "label": "a", "author": "x" * 81}, "author"),
    ],
    ids=str,
)
async def test_an_invalid_record_is_refused_with_its_field(
    client: httpx.AsyncClient, notes: Path, fields: dict[str, Any], message: str
) -> None:
    assert message in (await post(client, 422, **fields))["detail"]
    assert not notes.exists()


async def test_a_file_that_cannot_be_written_is_a_message(client: httpx.AsyncClient, notes: Path) -> None:
    notes.mkdir()
    refused = await post(client, 409, kind="label", label="a")
    for text in (refused["detail"], (await get(client, "notes"))["why_read_only"]):
        assert "x_notes.jsonl cannot be written" in text


async def test_a_body_without_end_is_refused(client: httpx.AsyncClient) -> None:
    await post(client, 413, kind="note", text="x" * 300_000)


async def test_the_summary_has_labels_and_authors(path: Path, client: httpx.AsyncClient) -> None:
    judged = [
        ("ann", 0, "correct"),
        ("ann", 1, "wrong"),
        ("ann", 2, "wrong"),
        ("bob", 0, "correct"),
        ("bob", 2, "wrong"),
    ]
    write_notes(path, *(record(ROWS[at], "override", author, verdict=verdict) for author, at, verdict in judged))
    write_notes(path, record(ROWS[0], "label", "ann", label="loop"), record(ROWS[5], "note", "ann", text="look"))
    found = await get(client, "notes/summary")
    assert found["labels"] == [{"label": "loop", "rollouts": 1, "authors": ["ann"], "measured": 1, "solved": 1}]
    authors = [(one["author"], one["rollouts"], one["verdicts"], one["notes"]) for one in found["authors"]]
    assert authors == [("ann", 4, 3, 1), ("bob", 2, 2, 0)]
