"""Rollyard's environments over ORS, with raw requests."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.support.served import Served, ors, served, served_once

sokoban = served_once("grl_sokoban", ors, max_steps=2)
gsm8k = served_once("gsm8k", ors)


async def events(found: Served, path: str, body: Any, session_id: str = "s") -> list[tuple[str, str]]:
    headers = {"x-session-id": session_id}
    async with found.http.post(found.url + path, json=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        text = await response.text()
    parsed = []
    for block in text.strip().split("\n\n"):
        if not block.startswith(":"):
            name, data = block.split("\n", 1)
            parsed.append((name.removeprefix("event: "), data.removeprefix("data: ")))
    return parsed


async def call(found: Served, session_id: str, name: str, arguments: Any) -> Any:
    found_events = await events(found, "/call", {"name": name, "input": arguments}, session_id)
    assert found_events[0][0] == "task_id"
    return orjson.loads("".join(data for kind, data in found_events[1:] if kind in ("chunk", "end")))


async def create(found: Served, session_id: str, index: int = 0) -> None:
    status, answer = await found.post("/create", {"split": "train", "index": index}, session_id)
    assert (status, answer) == (200, {"sid": session_id})


async def test_an_episode_ends_with_the_verdict_as_its_only_reward(sokoban: Served) -> None:
    await create(sokoban, "episode")
    first = await call(sokoban, "episode", "step", {"actions": ["Up"]})
    last = await call(sokoban, "episode", "step", {"actions": ["Up"]})
    after = await call(sokoban, "episode", "step", {"actions": ["Up"]})
    assert (first["output"]["reward"], first["output"]["finished"]) == (0.0, False)
    assert last["output"]["reward"] == pytest.approx(-0.2)
    assert last["output"]["finished"] is True
    assert (after["ok"], after["reason"]) == (False, "episode_finished")
    await sokoban.post("/delete", {}, "episode")
    await sokoban.until_closed()


async def test_the_terminal_tool_scores_the_models_last_message(gsm8k: Served) -> None:
    async with gsm8k.http.get(gsm8k.url + "/tools") as response:
        listed = await response.json()
    assert (listed["tools"], listed["terminal_tool"]["name"]) == ([], "submit")
    await create(gsm8k, "answer")
    scored = await call(gsm8k, "answer", "submit", {"answer": "\\boxed{72}"})
    assert (scored["output"]["reward"], scored["output"]["finished"]) == (1.0, True)


async def test_tasks_do_not_contain_the_expected_answers(gsm8k: Served) -> None:
    _, answer = await gsm8k.post("/gsm8k/tasks", {"split": "train"})
    assert answer["tasks"][:2] == [{"split": "train", "index": 0}, {"split": "train", "index": 1}]


async def test_a_call_is_executed_once_however_often_its_result_is_read(sokoban: Served) -> None:
    await create(sokoban, "again")
    first = await events(sokoban, "/call", {"name": "step", "input": {"actions": ["Up"]}}, "again")
    again = await events(sokoban, "/call", {"name": "x", "input": {}, "task_id": first[0][1]}, "again")
    assert again == first
    assert (await call(sokoban, "again", "step", {"actions": ["Up"]}))["output"]["finished"] is True
    await sokoban.post("/delete", {}, "again")


async def test_an_unknown_tool_and_invalid_arguments_are_words_for_the_model(sokoban: Served) -> None:
    await create(sokoban, "words")
    unknown = await call(sokoban, "words", "verify", {})
    invalid = await call(sokoban, "words", "step", {"actions": "Fly"})
    assert (unknown["ok"], unknown["reason"]) == (False, "not_found")
    assert "actions" in invalid["output"]["blocks"][0]["text"]
    await sokoban.post("/delete", {}, "words")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/create", [], 400),
        ("/create", {}, 400),
        ("/create", {"split": "nowhere", "index": 0}, 400),
        ("/create", {"split": "train", "index": "a"}, 400),
        ("/create", {"task_spec": [1]}, 400),
        ("/create", {"task_spec": {"row": [1]}}, 400),
        ("/create", {"split": "train", "index": 0, "env_name": "other"}, 404),
        ("/call", {"name": "step", "input": {}}, 404),
        ("/ping", {}, 404),
        ("/task_range", {"split": "train", "start": "a"}, 400),
    ],
)
async def test_a_malformed_request_is_refused_with_words(sokoban: Served, path: str, body: Any, status: int) -> None:
    found, answer = await sokoban.post(path, body, "malformed")
    assert (found, bool(answer["detail"])) == (status, True)


@pytest.mark.parametrize("body", [{"name": 5, "input": {}}, {"name": "step", "input": [1]}, {}])
async def test_a_malformed_call_leaves_the_session_usable(sokoban: Served, body: Any) -> None:
    await create(sokoban, "usable")
    status, _ = await sokoban.post("/call", body, "usable")
    assert status == 400
    assert (await call(sokoban, "usable", "step", {"actions": []}))["ok"] is True
    await sokoban.post("/delete", {}, "usable")


async def test_a_request_without_a_session_id_is_refused(sokoban: Served) -> None:
    status, answer = await sokoban.post("/create", {"split": "train", "index": 0})
    assert status == 400
    assert "X-Session-ID" in answer["detail"]


async def test_an_idle_session_is_closed(tmp_path_factory: pytest.TempPathFactory) -> None:
    from rollyard.services.interop.ors import ors_app

    def quick(environment: Any) -> Any:
        return ors_app(environment, version="1", max_sessions=10, idle_s=0.2)

    async with served("gsm8k", quick, tmp_path_factory.mktemp("idle")) as found:
        await create(found, "idle")
        await found.until_closed()
        assert (await found.post("/ping", {}, "idle"))[0] == 404


async def test_a_failed_create_leaves_no_session(sokoban: Served) -> None:
    row = {"level": "no board", "responses_create_params": {"input": "x"}}
    status, answer = await sokoban.post("/create", {"task_spec": {"row": row}}, "bad")
    assert status == 422
    assert "unknown symbols" in answer["detail"]
    assert (await sokoban.post("/ping", {}, "bad"))[0] == 404
