"""Rollyard's environments over OpenEnv's protocol, with raw messages."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.served import Served, openenv, openenv_of_first_task, served, served_once

MOVES = {"type": "call_tool", "tool_name": "step", "arguments": {"actions": ["Up"]}}


sokoban = served_once("grl_sokoban", openenv, max_steps=3)
first_room = served_once("grl_sokoban", openenv_of_first_task, max_steps=3)
gsm8k = served_once("gsm8k", openenv)


async def ask(socket: aiohttp.ClientWebSocketResponse, kind: str, data: Any = None) -> Any:
    await socket.send_json({"type": kind} if data is None else {"type": kind, "data": data})
    return await socket.receive_json()


async def test_the_same_seed_opens_the_same_task(sokoban: Served) -> None:
    boards = []
    async with sokoban.http.ws_connect(sokoban.url + "/ws") as socket:
        for seed in (1, 2, 1):
            await ask(socket, "reset", {"seed": seed})
            boards.append((await ask(socket, "step", {**MOVES, "arguments": {"actions": []}}))["data"]["observation"])
    assert boards[0] == boards[2] != boards[1]


async def test_only_the_last_step_has_a_reward_and_it_is_the_verdict(sokoban: Served) -> None:
    async with sokoban.http.ws_connect(sokoban.url + "/ws") as socket:
        await ask(socket, "reset", {"index": 0})
        steps = [(await ask(socket, "step", MOVES))["data"] for _ in range(3)]
    assert [step["reward"] for step in steps[:2]] == [0.0, 0.0]
    assert [step["done"] for step in steps] == [False, False, True]
    assert steps[2]["reward"] == pytest.approx(-0.3)
    assert steps[2]["metadata"]["success"] is False


async def test_a_message_is_scored_as_the_final_answer(gsm8k: Served) -> None:
    async with gsm8k.http.ws_connect(gsm8k.url + "/ws") as socket:
        opened = (await ask(socket, "reset", {"index": 0}))["data"]
        right = (await ask(socket, "step", {"type": "message", "message": "It is \\boxed{72}."}))["data"]
        await ask(socket, "reset", {"index": 0})
        wrong = (await ask(socket, "step", {"type": "message", "message": "It is \\boxed{71}."}))["data"]
    assert "Natalia" in opened["observation"]["text"]
    assert "72" not in opened["observation"]["text"]
    assert (right["reward"], right["done"]) == (1.0, True)
    assert (wrong["reward"], wrong["done"]) == (0.0, True)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("not JSON", "INVALID_JSON"),
        ("[1]", "VALIDATION_ERROR"),
        ('{"type": "reset", "data": [1]}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": "a"}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"index": 99}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": "Up"}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"type": "call_tool", "tool_name": 3}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"type": "fly"}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"type": "call_tool", "tool_name": "step"}}', "EXECUTION_ERROR"),
        ('{"type": 5}', "UNKNOWN_TYPE"),
        ("{}", "UNKNOWN_TYPE"),
    ],
)
async def test_a_malformed_message_gets_an_error_and_the_session_goes_on(
    sokoban: Served, message: str, code: str
) -> None:
    async with sokoban.http.ws_connect(sokoban.url + "/ws") as socket:
        await socket.send_str(message)
        answer = await socket.receive_json()
        assert (answer["type"], answer["data"]["code"]) == ("error", code)
        assert "Traceback" not in answer["data"]["message"]
        assert (await ask(socket, "reset", {}))["type"] == "observation"


@pytest.mark.parametrize("name", ["fly", "verify", "../verify", "", "close"])
async def test_an_unknown_tool_is_answered_with_words(sokoban: Served, name: str) -> None:
    async with sokoban.http.ws_connect(sokoban.url + "/ws") as socket:
        await ask(socket, "reset", {"index": 0})
        answer = await ask(socket, "step", {"type": "call_tool", "tool_name": name, "arguments": {}})
        still_open = await ask(socket, "step", MOVES)
    if name:
        assert answer["data"]["observation"]["error"]["error_type"] == "tool_not_found"
    else:
        assert answer["data"]["code"] == "VALIDATION_ERROR"
    assert still_open["data"]["observation"]["error"] is None


async def test_a_session_ends_when_its_socket_does(sokoban: Served) -> None:
    socket = await sokoban.http.ws_connect(sokoban.url + "/ws")
    await ask(socket, "reset", {"index": 0})
    assert await sokoban.open_sessions() == 1
    transport = socket.get_extra_info("socket")
    assert transport is not None
    await socket.close()
    await sokoban.until_closed()


async def test_a_hundred_sessions_play_at_once_and_leave_nothing_open(sokoban: Served) -> None:
    async def play(number: int) -> float:
        async with sokoban.http.ws_connect(sokoban.url + "/ws") as socket:
            await ask(socket, "reset", {"index": number % 5})
            return float(sum([(await ask(socket, "step", MOVES))["data"]["reward"] for _ in range(3)]))

    rewards = await asyncio.gather(*(play(number) for number in range(100)))
    assert rewards == rewards[:5] * 20
    await sokoban.until_closed()


async def test_http_requests_use_a_new_episode_each_and_close_it(sokoban: Served) -> None:
    status, opened = await sokoban.post("/reset", {"seed": 3})
    assert (status, opened["done"]) == (200, False)
    status, stepped = await sokoban.post("/step", {"action": MOVES, "index": 0})
    assert (status, stepped["reward"]) == (200, 0.0)
    await sokoban.until_closed()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/reset", []),
        ("/reset", {"seed": -1}),
        ("/step", {}),
        ("/step", {"action": []}),
        ("/step", {"action": {"type": "call_tool"}}),
        ("/grl_sokoban/task_range", {"split": "train", "start": "a"}),
        ("/grl_sokoban/task", {"split": "train", "index": None}),
        ("/grl_sokoban/tasks", {"split": "nowhere"}),
    ],
)
async def test_a_malformed_request_is_refused_with_words(sokoban: Served, path: str, body: Any) -> None:
    status, answer = await sokoban.post(path, body)
    assert status == 422
    assert "expected" in answer["detail"] or "has only" in answer["detail"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, -32600),
        ([], -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": 7}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "fly"}, -32601),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": [1]}, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}}, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"session_id": "x"}}, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "openenv/session/close", "params": {}}, -32602),
    ],
)
async def test_malformed_json_rpc_gets_an_error_code(sokoban: Served, body: Any, code: int) -> None:
    status, answer = await sokoban.post("/mcp", body)
    assert (status, answer["error"]["code"]) == (200, code)


async def test_an_mcp_session_keeps_its_episode_between_requests(first_room: Served) -> None:
    async def rpc(method: str, **params: Any) -> Any:
        _, answer = await first_room.post("/mcp", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        return answer["result"]

    session_id = (await rpc("openenv/session/create"))["session_id"]
    call = {"session_id": session_id, "name": "step", "arguments": {"actions": ["Up"]}}
    steps = [await rpc("tools/call", **call) for _ in range(3)]
    assert [step["_meta"]["openenv"]["done"] for step in steps] == [False, False, True]
    assert (await rpc("openenv/session/close", session_id=session_id))["closed"] is True
    await first_room.until_closed()


async def test_an_mcp_socket_lists_the_tools_and_the_one_that_submits(sokoban: Served) -> None:
    async with sokoban.http.ws_connect(sokoban.url + "/mcp") as socket:
        await socket.send_json({"jsonrpc": "2.0", "id": "a", "method": "tools/list"})
        answer = await socket.receive_json()
    assert answer["id"] == "a"
    assert [tool["name"] for tool in answer["result"]["tools"]] == ["step", "submit"]


async def test_a_page_of_another_site_cannot_open_a_socket(sokoban: Served) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError):
        await sokoban.http.ws_connect(sokoban.url + "/ws", origin="http://example.org")


async def test_the_connection_after_the_limit_is_refused_with_a_code(tmp_path: Path) -> None:
    from rollyard.services.interop.openenv import openenv_app

    async with (
        served("gsm8k", lambda environment: openenv_app(environment, max_sessions=1, idle_s=60.0), tmp_path) as found,
        found.http.ws_connect(found.url + "/ws") as first,
        found.http.ws_connect(found.url + "/ws") as second,
    ):
        assert (await second.receive_json())["data"]["code"] == "CAPACITY_REACHED"
        assert (await ask(first, "reset", {"index": 0}))["type"] == "observation"


async def test_a_failure_of_the_environment_is_an_error_and_no_reward(sokoban: Served) -> None:
    async with sokoban.http.ws_connect(sokoban.url + "/ws") as socket:
        answer = await ask(socket, "reset", {"row": {"level": "no board", "responses_create_params": {"input": "x"}}})
        assert (answer["type"], answer["data"]["code"]) == ("error", "EXECUTION_ERROR")
        assert "reward" not in answer["data"]
    await sokoban.until_closed()
