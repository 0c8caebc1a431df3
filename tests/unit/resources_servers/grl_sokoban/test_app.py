"""Sokoban's endpoints: the tool, turn-based mode, the verdict, the limits and the optional features."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.agents.game_agent.app import GameAgent
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.grl_sokoban.app import GrlSokoban, read_move
from rollyard.resources_servers.grl_sokoban.generator import RoomSpec
from rollyard.resources_servers.grl_sokoban.task import SokobanSettings, prepared
from rollyard.services.server.settings import parse_settings
from tests.support.in_process import InProcessServers, Script, agent, calls, environment, in_process_servers, says
from tests.support.waiting import deadline_s

ROW: Json = {"seed": 84810, "dim_room": [5, 5], "num_boxes": 1}
BOARD = "#####\n#O__#\n#_X_#\n#_P_#\n#####"
XSB = "#####\n#.  #\n# $ #\n# @ #\n#####"
CORNER = ["Up", "Left", "Up", "Right"]
OUTSIDE = ["../secret.xsb", "link.xsb", "/etc/passwd", ".", "none.xsb"]


def in_process_server(**settings: Any) -> Any:
    return in_process_servers({"environment": environment(GrlSokoban, **settings)})


async def start_session(stack: InProcessServers, row: Json = ROW, path: str = "/seed_session") -> dict[str, str]:
    answer = await stack.post("environment", path, row)
    assert answer.status == 200, answer.body
    return {"cookie": answer.cookies[0].partition(";")[0]}


async def post(stack: InProcessServers, path: str, body: Json, cookie: dict[str, str]) -> Json:
    answer = await stack.post("environment", path, body, cookie)
    assert answer.status == 200, answer.body
    result: Json = orjson.loads(answer.body)
    return result


async def step(stack: InProcessServers, cookie: dict[str, str], actions: Any) -> Json:
    return await post(stack, "/step", {"actions": actions}, cookie)


async def undo(stack: InProcessServers, cookie: dict[str, str], moves: Any) -> Json:
    return await post(stack, "/undo", {"moves": moves}, cookie)


async def turn(stack: InProcessServers, cookie: dict[str, str], text: str) -> Json:
    message = {"type": "message", "content": [{"type": "output_text", "text": text}]}
    body = {"responses_create_params": {"input": []}, "response": {"output": [message]}}
    return await post(stack, "/step", body, cookie)


async def get_verdict(stack: InProcessServers, cookie: dict[str, str], row: Json = ROW) -> Json:
    body = {**row, "responses_create_params": {"input": []}, "response": {"output": []}}
    return await post(stack, "/verify", body, cookie)


async def refusal(row: Json, path: str = "/seed_session", **settings: Any) -> str:
    async with in_process_server(**settings) as stack:
        answer = await stack.post("environment", path, row)
        problem = orjson.loads(answer.body)
        assert (answer.status, problem["type"]) == (422, "urn:rollyard:bad_task")
        assert stack.servers["environment"].sessions == 0
        return str(problem["detail"])


@pytest.mark.parametrize("actions", [["Left", "Up"], ["left", "UP"], [3, 1], ["3", "1"], [" left ", 1]])
async def test_labels_in_any_case_and_numbers_are_the_same_moves(actions: Sequence[Any]) -> None:
    async with in_process_server() as stack:
        moved = await step(stack, await start_session(stack), actions)
    assert moved["observation"] == "#####\n#O__#\n#PX_#\n#___#\n#####"
    assert (moved["steps"], moved["total_reward"]) == (2, -0.2)


@pytest.mark.parametrize("actions", [["Up", 5], ["Up", None], ["Up", 1.5], "Up", None, [True], ["true"], "1", True])
async def test_an_invalid_action_returns_an_error_and_executes_nothing(actions: Any) -> None:
    async with in_process_server() as stack:
        cookie = await start_session(stack)
        answer = await step(stack, cookie, actions)
        assert set(answer) == {"error"} and len(answer["error"]) > 20
        assert (await step(stack, cookie, []))["steps"] == 0


async def test_moves_after_the_end_are_not_executed() -> None:
    async with in_process_server() as stack:
        cookie = await start_session(stack, {**ROW, "max_steps": 3})
        ended = await step(stack, cookie, ["Left", "Right", "Left", "Right", "Left"])
        assert (ended["steps"], ended["done"]) == (3, True)
        after = await step(stack, cookie, ["Right"])
    assert (after["steps"], after["reward"], after["total_reward"]) == (3, 0.0, ended["total_reward"])


async def test_the_verdict_reports_the_optimum_and_the_outcome() -> None:
    puzzle = prepared(RoomSpec(84810, (5, 5), 1))
    assert puzzle.optimum is not None
    async with in_process_server() as stack:
        cookie = await start_session(stack)
        await step(stack, cookie, list(puzzle.optimum.path))
        verdict = await get_verdict(stack, cookie)
    assert verdict["success"] is True
    assert verdict["moves"] == verdict["optimal_moves"] == len(puzzle.optimum.path)
    assert (verdict["optimal_pushes"], verdict["boxes_on_target"], verdict["deadlocked"]) == (2, 1, False)
    assert verdict["reward"] == pytest.approx(11 - 0.1 * verdict["moves"])


async def test_a_lost_room_is_flagged_to_the_model_and_in_the_verdict_and_the_episode_continues() -> None:
    async with in_process_server(deadlock="flag") as stack:
        cookie = await start_session(stack)
        assert (await step(stack, cookie, ["Up"]))["deadlocked"] is False
        result = await step(stack, cookie, CORNER[1:])
        verdict = await get_verdict(stack, cookie)
    assert (result["deadlocked"], result["done"]) == (True, False)
    assert (verdict["deadlocked"], verdict["success"]) == (True, False)


async def test_the_turn_based_form_returns_gymnasiums_five_values() -> None:
    async with in_process_server() as stack:
        answer = await stack.post("environment", "/reset", ROW)
        first = orjson.loads(answer.body)
        assert first["observation"].startswith(BOARD)
        assert first["info"]["supports_explicit_close"] is True
        cookie = {"cookie": answer.cookies[0].partition(";")[0]}
        played = await turn(stack, cookie, "I go <action>Left</action>")
        hint = await turn(stack, cookie, "hmm")
    assert set(played) == {"observation", "reward", "terminated", "truncated", "info"}
    assert played["observation"] == "#####\n#O__#\n#_X_#\n#P__#\n#####"
    assert (played["reward"], played["terminated"], played["truncated"]) == (-0.1, False, False)
    assert "No move found" in hint["observation"]
    assert (hint["reward"], hint["terminated"]) == (0.0, False)


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
        cookies = await asyncio.gather(*(start_session(stack) for _ in range(8)))
        await step(stack, cookies[0], ["Left", "Up", "Up"])
        boards = [(await step(stack, cookie, []))["observation"] for cookie in cookies[1:]]
    assert boards == [BOARD] * 7


async def tools(stack: InProcessServers) -> list[str]:
    answer = await stack.transport.send("GET", "http://environment:1/tools", b"", {}, deadline_s())
    return [tool["name"] for tool in orjson.loads(answer.body)]


async def test_without_the_setting_there_is_no_undo_tool() -> None:
    async with in_process_server() as stack:
        assert await tools(stack) == ["step"]
        result = await undo(stack, await start_session(stack), 1)
    assert result == {"error": "There is no tool 'undo'. Tools: step."}


async def test_undo_reverts_moves_and_returns_the_board() -> None:
    async with in_process_server(undo=True) as stack:
        assert await tools(stack) == ["step", "undo"]
        cookie = await start_session(stack)
        await step(stack, cookie, ["Left", "Up"])
        result = await undo(stack, cookie, 2)
        rewards = {"reward": pytest.approx(-0.2), "total_reward": pytest.approx(-0.4)}
        assert result == {"observation": BOARD, **rewards, "done": False, "steps": 4}
        assert (await get_verdict(stack, cookie))["moves"] == 4


@pytest.mark.parametrize("moves", [2, 0, -1, "all", None, 1.5, True, "1", " 1 ", [1]])
async def test_an_impossible_undo_returns_an_error_and_undoes_nothing(moves: Any) -> None:
    async with in_process_server(undo=True) as stack:
        cookie = await start_session(stack)
        await step(stack, cookie, ["Left"])
        assert set(await undo(stack, cookie, moves)) == {"error"}
        assert (await step(stack, cookie, []))["steps"] == 1


async def test_a_lost_room_ends_the_agents_episode_without_a_penalty() -> None:
    script = Script([[calls("step", {"actions": [*CORNER, "Down", "Down"]})], [says("never asked")]])
    servers = {"environment": environment(GrlSokoban, deadlock="end"), "model": script.model, "agent": agent(GameAgent)}
    async with in_process_servers(servers) as stack:
        rollout = await stack.run({**ROW, "responses_create_params": {"input": "Play."}})
    assert (rollout["finish_reason"], rollout["truncated"], len(script.requests)) == ("done", False, 1)
    assert (rollout["deadlocked"], rollout["success"], rollout["moves"]) == (True, False, 4)
    assert rollout["reward"] == pytest.approx(-0.4)


async def test_the_turn_based_form_shows_coordinates_and_refuses_unsupported_settings() -> None:
    async with in_process_server(observations=["coordinates"]) as stack:
        answer = orjson.loads((await stack.post("environment", "/reset", ROW)).body)
        assert "Player: (3, 2)" in answer["observation"] and "# wall" not in answer["observation"]
    assert "image" in await refusal(ROW, "/reset", observations=["image"])
    assert "charge_unplayed" in await refusal(ROW, "/reset", charge_unplayed=True)


async def test_the_verdict_reports_the_shaping_reward() -> None:
    async with in_process_server(shaping={"scale": 2}) as stack:
        cookie = await start_session(stack)
        result = await step(stack, cookie, ["Up", "Right"])
        verdict = await get_verdict(stack, cookie)
    assert verdict["shaping_reward"] == pytest.approx(1.0)
    assert verdict["reward"] == result["total_reward"] == pytest.approx(0.8)


@pytest.mark.parametrize("row", [{"level": XSB}, {"level": BOARD}, {"level_file": "own/a.xsb", "level_index": 1}])
async def test_a_row_may_contain_its_board_or_name_a_level(tmp_path: Path, row: Json) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.xsb").write_text(f"#####\n#@$.#\n#####\n\n{XSB}\n")
    async with in_process_server(levels_folder=tmp_path) as stack:
        cookie = await start_session(stack, row)
        assert (await step(stack, cookie, []))["observation"] == BOARD
        verdict = await get_verdict(stack, cookie)
    assert (verdict["optimal_moves"], verdict["room_seed"]) == (4, None)


async def test_a_symmetry_transforms_the_room_and_keeps_its_optimum() -> None:
    async with in_process_server() as stack:
        cookie = await start_session(stack, {**ROW, "symmetry": "mirror_turn180"})
        result = await step(stack, cookie, [])
        verdict = await get_verdict(stack, cookie)
    assert result["observation"] == "\n".join(BOARD.split("\n")[::-1])
    assert verdict["optimal_moves"] == 4


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"seed": 1, "dim_room": [4, 4]}, "4x4"),
        ({"seed": 1, "dim_room": [40, 40]}, "limit of 10"),
        ({"seed": 1, "num_boxes": 9}, "limit of 4"),
        ({"seed": 1, "search_depth": 5000}, "limit of 300"),
        ({"seed": -1}, "seed"),
        ({}, "seed"),
        ({"seed": 1, "dim_room": [6]}, "dim_room"),
        ({"seed": 1, "max_steps": 0}, "max_steps"),
        *(({"seed": 1, name: odd}, name) for name in ("seed", "num_boxes", "max_steps") for odd in (True, "1", "1e0")),
        ({"seed": 1, "dim_room": [6, "6"]}, "dim_room"),
        *(({"level_file": path, "level_index": 0}, "not a file in") for path in OUTSIDE),
        *(({"level_file": path, "level_index": 0}, "level_file") for path in ("", "a\0.xsb", "a" * 201)),
        ({"level_file": "a.xsb", "level_index": 7}, "the file has 2 levels, numbered from 0"),
        ({"level_file": "a.xsb", "level_index": 1}, "a.xsb, level 1 (line 5): the wall has a hole"),
        ({"level_file": "a.xsb"}, "must be set together"),
        ({"level_file": "a.xsb", "level_index": True}, "level_index"),
        ({"level": XSB, "seed": 3}, "found seed and level"),
        ({"level": XSB, "symmetry": "upside_down"}, "symmetry"),
        ({"level": "#####\n#$  #\n# @.#\n#####"}, "level: a box is in a cell from which it cannot"),
        ({"level": f"{'#' * 14}\n#@$.{' ' * 9}#\n{'#' * 14}"}, "limit of 10"),
        ({"level": "########\n#@$$$$$#\n#..... #\n########"}, "num_boxes 5"),
        ({"level": "#" * 10_001}, "level"),
    ],
)
async def test_an_invalid_row_is_refused_with_the_reason(tmp_path: Path, row: Json, message: str) -> None:
    folder = tmp_path / "levels"
    folder.mkdir()
    (tmp_path / "secret.xsb").write_text(XSB)
    (folder / "link.xsb").symlink_to(tmp_path / "secret.xsb")
    (folder / "a.xsb").write_text("#####\n#@$.#\n#####\n\n#####\n#@$.\n#####\n")
    detail = await refusal(row, levels_folder=folder)
    assert message in detail and str(tmp_path) not in detail


async def test_without_a_levels_folder_no_level_file_is_read() -> None:
    assert "levels_folder is not set" in await refusal({"level_file": "a.xsb", "level_index": 0})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"observations": []}, "without duplicates"),
        ({"observations": ["text", "text"]}, "without duplicates"),
        ({"deadlock": "maybe"}, "'flag' or 'end'"),
        ({"max_steps": 5000}, "max_steps"),
        ({"solver_states": -1}, "solver_states"),
        *(({name: True}, name) for name in ("max_boxes", "max_search_depth", "solver_states", "tile_px", "max_steps")),
        ({"levels_folder": "no/such/folder"}, "the folder does not exist"),
        ({"shaping": {"gamma": 0.9}}, "gamma 0.9 would reward standing still"),
        ({"shaping": {"gamma": 0.99, "scale": 1}}, "use a gamma above 0.998"),
        ({"shaping": {"gamma": 1.1}}, "less than or equal to 1"),
        ({"shaping": {"scale": 0}}, "greater than 0"),
        ({"shaping": {"most_moves": 0}}, "greater than or equal to 1"),
    ],
)
def test_invalid_settings_are_rejected_at_the_start(settings: Json, message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        parse_settings(SokobanSettings, settings, "grl_sokoban")


@pytest.mark.parametrize(
    "idle",
    [
        says("I give up."),
        calls("step", '{"actions": ["Up"'),
        calls("step", {"actions": ["Jump"]}),
        calls("step", {"actions": []}),
        calls("move", {"actions": ["Up"]}),
    ],
)
async def test_an_episode_without_a_move_pays_less_than_ten_failed_moves(idle: Json) -> None:
    async def reward(turn: Json) -> float:
        game = environment(GrlSokoban, charge_unplayed=True)
        make = {"environment": game, "model": Script([turn]).model, "agent": agent(GameAgent, max_steps=10)}
        async with in_process_servers(make) as stack:
            return float((await stack.run({**ROW, "responses_create_params": {"input": "Play."}}))["reward"])

    assert await reward(idle) < await reward(calls("step", {"actions": ["Up"]}))


async def test_a_lost_room_terminates_the_turn_based_form() -> None:
    async with in_process_server(deadlock="end") as stack:
        cookie = await start_session(stack, path="/reset")
        for move in CORNER:
            played = await turn(stack, cookie, move)
    assert (played["terminated"], played["truncated"], played["info"]["deadlocked"]) == (True, False, True)


async def test_undone_moves_count_as_steps_up_to_the_limit() -> None:
    async with in_process_server(undo=True) as stack:
        cookie = await start_session(stack, {**ROW, "max_steps": 3})
        await step(stack, cookie, ["Left", "Right"])
        result = await undo(stack, cookie, 2)
        assert (result["steps"], result["done"]) == (3, True)
        after = await undo(stack, cookie, 1)
    assert (after["steps"], after["reward"], after["observation"]) == (3, 0.0, result["observation"])
