"""Sokoban's endpoints: the tool, turn-based mode, the verdict and the limits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from rollyard.records.types import Json
from rollyard.resources_servers.grl_sokoban.app import GrlSokoban, read_move
from rollyard.resources_servers.grl_sokoban.generator import RoomSpec
from rollyard.resources_servers.grl_sokoban.task import prepared
from tests.support.in_process import InProcessServers, environment, in_process_servers
from tests.unit.resources_servers.grl_sokoban.reference import trajectories

ROW: Json = {"seed": 84810, "dim_room": [5, 5], "num_boxes": 1}
BOARD = "#####\n#O__#\n#_X_#\n#_P_#\n#####"


def in_process_server(**settings: Any) -> Any:
    return in_process_servers({"environment": environment(GrlSokoban, **settings)})


async def start_session(stack: InProcessServers, row: Json, path: str = "/seed_session") -> dict[str, str]:
    answer = await stack.post("environment", path, row)
    assert answer.status == 200, answer.body
    return {"cookie": answer.cookies[0].partition(";")[0]}


async def step(stack: InProcessServers, cookie: dict[str, str], actions: Any) -> Json:
    answer = await stack.post("environment", "/step", {"actions": actions}, cookie)
    assert answer.status == 200, answer.body
    result: Json = orjson.loads(answer.body)
    return result


async def get_verdict(stack: InProcessServers, cookie: dict[str, str], row: Json = ROW) -> Json:
    body = {**row, "responses_create_params": {"input": []}, "response": {"output": []}}
    answer = await stack.post("environment", "/verify", body, cookie)
    result: Json = orjson.loads(answer.body)
    return result


@pytest.mark.parametrize("actions", [["Left", "Up"], ["left", "UP"], [3, 1], ["3", "1"], [" left ", 1]])
async def test_labels_in_any_case_and_numbers_are_the_same_moves(actions: Sequence[Any]) -> None:
    async with in_process_server() as stack:
        moved = await step(stack, await start_session(stack, ROW), actions)
    assert moved["observation"] == "#####\n#O__#\n#PX_#\n#___#\n#####"
    assert (moved["steps"], moved["total_reward"]) == (2, -0.2)


@pytest.mark.parametrize(
    "actions",
    [["Up", "Fly"], ["Up", 5], ["Up", None], ["Up", 1.5], "Up", None, [True], ["Up", False], ["true"], "1", True],
)
async def test_an_invalid_action_returns_an_error_and_executes_nothing(actions: Any) -> None:
    async with in_process_server() as stack:
        cookie = await start_session(stack, ROW)
        answer = await step(stack, cookie, actions)
        assert set(answer) == {"error"}
        assert len(answer["error"]) > 20
        assert (await step(stack, cookie, []))["steps"] == 0


async def test_moves_after_the_end_are_not_executed() -> None:
    async with in_process_server() as stack:
        cookie = await start_session(stack, {**ROW, "max_steps": 3})
        ended = await step(stack, cookie, ["Left", "Right", "Left", "Right", "Left"])
        assert (ended["steps"], ended["done"]) == (3, True)
        after = await step(stack, cookie, ["Right"])
    assert (after["steps"], after["reward"], after["total_reward"]) == (3, 0.0, ended["total_reward"])


async def test_recorded_trajectories_are_reproduced_exactly_over_http() -> None:
    recorded = [found for found in trajectories() if found["kind"] != "random"][:40]
    async with in_process_server() as stack:
        for found in recorded:
            row = {key: found[key] for key in ("seed", "dim_room", "num_boxes", "max_steps")}
            cookie = await start_session(stack, row)
            total, solved = 0.0, False
            for action, board, reward, done, _, success, _ in found["steps"]:
                played = await step(stack, cookie, [action])
                total += reward
                assert (played["observation"], played["reward"], played["done"]) == (board, reward, done)
                solved = success
                if done:
                    break
            verdict = await get_verdict(stack, cookie, row)
            assert (verdict["reward"], verdict["success"]) == (round(total, 9), solved)


async def test_the_verdict_reports_the_optimum_and_the_outcome() -> None:
    puzzle = prepared(RoomSpec(84810, (5, 5), 1))
    assert puzzle.optimum is not None
    async with in_process_server() as stack:
        cookie = await start_session(stack, ROW)
        await step(stack, cookie, list(puzzle.optimum.path))
        verdict = await get_verdict(stack, cookie)
    assert verdict["success"] is True
    assert verdict["moves"] == verdict["optimal_moves"] == len(puzzle.optimum.path)
    assert (verdict["optimal_pushes"], verdict["boxes_on_target"], verdict["deadlocked"]) == (2, 1, False)
    assert verdict["reward"] == pytest.approx(11 - 0.1 * verdict["moves"])


async def test_a_box_pushed_into_a_corner_is_a_deadlock_in_the_verdict() -> None:
    async with in_process_server() as stack:
        cookie = await start_session(stack, ROW)
        await step(stack, cookie, ["Up"])
        before = await get_verdict(stack, cookie)
        await step(stack, cookie, ["Left", "Up", "Right"])
        after = await get_verdict(stack, cookie)
    assert (before["deadlocked"], after["deadlocked"]) == (False, True)
    assert after["success"] is False


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"seed": 1, "dim_room": [4, 4]}, "4x4"),
        ({"seed": 1, "dim_room": [4, 6], "num_boxes": 3}, "4x6"),
        ({"seed": 1, "dim_room": [40, 40]}, "limit of 10"),
        ({"seed": 1, "num_boxes": 9}, "limit of 4"),
        ({"seed": 1, "search_depth": 5000}, "limit of 300"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**32}, "seed"),
        ({}, "seed"),
        ({"seed": 1, "dim_room": [6]}, "dim_room"),
        ({"seed": 1, "dim_room": [0, 6]}, "0x6"),
        ({"seed": 1, "num_boxes": 0}, "num_boxes"),
        ({"seed": 1, "max_steps": 0}, "max_steps"),
    ],
)
async def test_an_invalid_row_is_refused_with_the_reason(row: Json, message: str) -> None:
    async with in_process_server() as stack:
        answer = await stack.post("environment", "/seed_session", row)
        problem = orjson.loads(answer.body)
        assert (answer.status, problem["type"]) == (422, "urn:rollyard:bad_task")
        assert message in problem["detail"]
        assert stack.servers["environment"].sessions == 0


@pytest.mark.parametrize("invalid", [True, False, "1", "6", " 6 ", "1e0"])
@pytest.mark.parametrize("name", ["seed", "num_boxes", "search_depth", "max_steps", "dim_room", "level_index"])
async def test_a_boolean_or_a_string_in_a_row_is_not_a_number(name: str, invalid: Any) -> None:
    room: Json = {"level_file": "levels.txt", "level_index": 0} if name == "level_index" else {"seed": 1}
    row = {**room, name: [6, invalid] if name == "dim_room" else invalid}
    async with in_process_server() as stack:
        answer = await stack.post("environment", "/seed_session", row)
    problem = orjson.loads(answer.body)
    assert (answer.status, problem["type"]) == (422, "urn:rollyard:bad_task")
    assert name in problem["detail"]


async def test_the_turn_based_form_returns_gymnasiums_five_values() -> None:
    async with in_process_server() as stack:
        answer = await stack.post("environment", "/reset", ROW)
        cookie = {"cookie": answer.cookies[0].partition(";")[0]}
        first = orjson.loads(answer.body)
        assert first["observation"].startswith(BOARD)
        assert first["info"]["supports_explicit_close"] is True
        message = {"type": "message", "content": [{"type": "output_text", "text": "I go <action>Left</action>"}]}
        body = {"responses_create_params": {"input": []}, "response": {"output": [message]}}
        turn = orjson.loads((await stack.post("environment", "/step", body, cookie)).body)
    assert set(turn) == {"observation", "reward", "terminated", "truncated", "info"}
    assert turn["observation"] == "#####\n#O__#\n#_X_#\n#P__#\n#####"
    assert (turn["reward"], turn["terminated"], turn["truncated"]) == (-0.1, False, False)


async def test_a_finished_turn_based_episode_leaves_no_session_behind() -> None:
    async with in_process_server() as stack:
        cookie = await start_session(stack, {**ROW, "max_steps": 1}, "/reset")
        body = {"response": {"output": [{"type": "message", "content": "up"}]}}
        turn = orjson.loads((await stack.post("environment", "/step", body, cookie)).body)
        assert (turn["terminated"], turn["truncated"]) == (False, True)
        assert stack.servers["environment"].sessions == 0
        assert (await stack.post("environment", "/close", {}, cookie)).status == 200


@pytest.mark.parametrize(
    ("text", "move"),
    [
        ("<action>Up</action>", 1),
        ("<ACTION> down </ACTION>", 2),
        ("first left, then right", 3),
        ("press 4", 4),
        ("upwards <action>3</action> up", 3),
        ("<action>fly</action> up", None),
        ("setup 15", None),
        ("", None),
    ],
)
def test_the_first_action_tag_or_else_the_first_direction_is_the_move(text: str, move: int | None) -> None:
    assert read_move(text) == move


async def test_equal_rows_give_equal_rooms_and_their_sessions_do_not_share_state() -> None:
    async with in_process_server() as stack:
        cookies = await asyncio.gather(*(start_session(stack, ROW) for _ in range(8)))
        await step(stack, cookies[0], ["Left", "Up", "Up"])
        boards = [(await step(stack, cookie, []))["observation"] for cookie in cookies[1:]]
    assert boards == [BOARD] * 7


async def test_a_message_without_a_move_gets_a_hint_and_costs_nothing() -> None:
    async with in_process_server() as stack:
        cookie = await start_session(stack, ROW, "/reset")
        body = {"response": {"output": [{"type": "message", "content": "hmm"}]}}
        turn = orjson.loads((await stack.post("environment", "/step", body, cookie)).body)
        assert "No move found" in turn["observation"]
        assert (turn["reward"], turn["terminated"]) == (0.0, False)
