"""Sokoban's optional features over its endpoints, and their absence with the default settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.agents.game_agent.app import GameAgent
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.grl_sokoban.app import GrlSokoban, SokobanSettings
from rollyard.services.server.settings import parse_settings
from tests.support.in_process import InProcessServers, Script, agent, calls, environment, in_process_servers, says
from tests.support.waiting import deadline_s

from .test_app import BOARD, ROW, get_verdict, in_process_server, start_session, step

XSB = "#####\n#.  #\n# $ #\n# @ #\n#####"
CORNER = ["Up", "Left", "Up", "Right"]


async def undo(stack: InProcessServers, cookie: dict[str, str], moves: Any) -> Json:
    answer = await stack.post("environment", "/undo", {"moves": moves}, cookie)
    result: Json = orjson.loads(answer.body)
    return result


async def tools(stack: InProcessServers) -> list[str]:
    answer = await stack.transport.send("GET", "http://environment:1/tools", b"", {}, deadline_s())
    return [tool["name"] for tool in orjson.loads(answer.body)]


async def refusal(row: Json, **settings: Any) -> str:
    async with in_process_server(**settings) as stack:
        answer = await stack.post("environment", "/seed_session", row)
        assert answer.status == 422
        assert stack.servers["environment"].sessions == 0
        detail: str = orjson.loads(answer.body)["detail"]
        return detail


async def test_without_the_setting_there_is_no_undo_tool() -> None:
    async with in_process_server() as stack:
        assert await tools(stack) == ["step"]
        result = await undo(stack, await start_session(stack, ROW), 1)
    assert result == {"error": "There is no tool 'undo'. Tools: step."}


async def test_undo_reverts_moves_and_returns_the_board() -> None:
    async with in_process_server(undo=True) as stack:
        assert await tools(stack) == ["step", "undo"]
        cookie = await start_session(stack, ROW)
        await step(stack, cookie, ["Left", "Up"])
        result = await undo(stack, cookie, 2)
        assert result == {
            "observation": BOARD,
            "reward": pytest.approx(-0.2),
            "total_reward": pytest.approx(-0.4),
            "done": False,
            "steps": 4,
        }
        assert (await get_verdict(stack, cookie))["moves"] == 4


@pytest.mark.parametrize("moves", [2, 0, -1, "all", None, 1.5, True, "1", " 1 ", [1]])
async def test_an_impossible_undo_returns_an_error_and_undoes_nothing(moves: Any) -> None:
    async with in_process_server(undo=True) as stack:
        cookie = await start_session(stack, ROW)
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
    for settings in ({"observations": ["image"]}, {"charge_unplayed": True}):
        async with in_process_server(**settings) as stack:
            answer = await stack.post("environment", "/reset", ROW)
            assert (answer.status, stack.servers["environment"].sessions) == (422, 0)


async def test_the_verdict_reports_the_shaping_reward() -> None:
    async with in_process_server(shaping={"scale": 2}) as stack:
        cookie = await start_session(stack, ROW)
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
        ({"level_file": "../secret.xsb", "level_index": 0}, "not a file in"),
        ({"level_file": "link.xsb", "level_index": 0}, "not a file in"),
        ({"level_file": "/etc/passwd", "level_index": 0}, "not a file in"),
        ({"level_file": ".", "level_index": 0}, "not a file in"),
        ({"level_file": "", "level_index": 0}, "level_file"),
        ({"level_file": "a\0.xsb", "level_index": 0}, "level_file"),
        ({"level_file": "a" * 201, "level_index": 0}, "level_file"),
        ({"level_file": "none.xsb", "level_index": 0}, "not a file in"),
        ({"level_file": "a.xsb", "level_index": 7}, "the file has 2 levels, numbered from 0"),
        ({"level_file": "a.xsb", "level_index": 1}, "a.xsb, level 1 (line 5): the wall has a hole"),
        ({"level_file": "a.xsb"}, "must be set together"),
        ({"level_file": "a.xsb", "level_index": -1}, "level_index"),
        ({"level": XSB, "seed": 3}, "found seed and level"),
        ({"level": XSB, "symmetry": "upside_down"}, "symmetry"),
        ({"level": "#####\n#$  #\n# @.#\n#####"}, "level: a box is in a cell from which it cannot"),
        ({"level": f"{'#' * 14}\n#@$.{' ' * 9}#\n{'#' * 14}"}, "limit of 10"),
        ({"level": "########\n#@$$$$$#\n#......#\n########".replace("......", "..... ")}, "num_boxes 5"),
        ({"level": "#" * 10_001}, "level"),
        ({"level": 3}, "level"),
    ],
)
async def test_an_invalid_level_is_rejected_with_the_reason(tmp_path: Path, row: Json, message: str) -> None:
    folder = tmp_path / "levels"
    folder.mkdir()
    (tmp_path / "secret.xsb").write_text(XSB)
    (folder / "link.xsb").symlink_to(tmp_path / "secret.xsb")
    (folder / "a.xsb").write_text("#####\n#@$.#\n#####\n\n#####\n#@$.\n#####\n")
    detail = await refusal(row, levels_folder=folder)
    assert message in detail
    assert str(tmp_path) not in detail


async def test_without_a_levels_folder_no_level_file_is_read() -> None:
    assert "levels_folder is not set" in await refusal({"level_file": "a.xsb", "level_index": 0})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"observations": []}, "without duplicates"),
        ({"observations": ["text", "text"]}, "without duplicates"),
        ({"observations": ["sound"]}, "observations"),
        ({"tile_px": 4}, "tile_px"),
        ({"deadlock": "maybe"}, "'flag' or 'end'"),
        ({"max_steps": 0}, "max_steps"),
        ({"max_steps": 5000}, "max_steps"),
        ({"max_rows": 2}, "max_rows"),
        *(({name: True}, name) for name in ("max_boxes", "max_search_depth", "solver_states", "tile_px", "max_steps")),
        ({"max_boxes": 0}, "max_boxes"),
        ({"solver_states": -1}, "solver_states"),
        ({"levels_folder": "no/such/folder"}, "the folder does not exist"),
        ({"undoo": True}, "undo"),
    ],
)
def test_invalid_settings_are_rejected_at_the_start(settings: Json, message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        parse_settings(SokobanSettings, settings, "grl_sokoban")


@pytest.mark.parametrize(
    "turn",
    [
        says("I give up."),
        calls("step", '{"actions": ["Up"'),
        calls("step", {"actions": ["Jump"]}),
        calls("step", {"actions": []}),
        calls("move", {"actions": ["Up"]}),
    ],
    ids=["no call", "unreadable call", "invalid move", "only looking", "unknown tool"],
)
async def test_an_episode_without_a_move_pays_less_than_ten_failed_moves(turn: Json) -> None:
    async def reward(turn: Json) -> float:
        make = {
            "environment": environment(GrlSokoban, charge_unplayed=True),
            "model": Script([turn]).model,
            "agent": agent(GameAgent, max_steps=10),
        }
        async with in_process_servers(make) as stack:
            return float((await stack.run({**ROW, "responses_create_params": {"input": "Play."}}))["reward"])

    assert await reward(turn) < await reward(calls("step", {"actions": ["Up"]}))


async def test_a_lost_room_terminates_the_turn_based_form() -> None:
    async with in_process_server(deadlock="end") as stack:
        cookie = await start_session(stack, ROW, "/reset")
        for move in CORNER:
            body = {"response": {"output": [{"type": "message", "content": move}]}}
            turn = orjson.loads((await stack.post("environment", "/step", body, cookie)).body)
    assert (turn["terminated"], turn["truncated"], turn["info"]["deadlocked"]) == (True, False, True)


async def test_undone_moves_count_as_steps_up_to_the_limit() -> None:
    async with in_process_server(undo=True) as stack:
        cookie = await start_session(stack, {**ROW, "max_steps": 3})
        await step(stack, cookie, ["Left", "Right"])
        result = await undo(stack, cookie, 2)
        assert (result["steps"], result["done"]) == (3, True)
        after = await undo(stack, cookie, 1)
    assert (after["steps"], after["reward"], after["observation"]) == (3, 0.0, result["observation"])


async def test_a_lost_room_is_flagged_and_the_episode_continues() -> None:
    async with in_process_server(deadlock="flag") as stack:
        cookie = await start_session(stack, ROW)
        assert (await step(stack, cookie, ["Up"]))["deadlocked"] is False
        result = await step(stack, cookie, CORNER[1:])
    assert (result["deadlocked"], result["done"]) == (True, False)
