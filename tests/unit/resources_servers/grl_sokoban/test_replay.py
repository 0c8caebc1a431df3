"""Replaying Sokoban episodes move by move from rollout rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.records.replay import Replay
from rollyard.records.types import Json
from rollyard.resources_servers.grl_sokoban.game import Game, Room, coordinates
from rollyard.resources_servers.grl_sokoban.replay import boards_in, replay
from tests.support.stacks import PUZZLES, collect, colocated, load_config, read_rows

ROW: Json = {"seed": 84810, "dim_room": [5, 5], "num_boxes": 1}
START = "#####\n#O__#\n#_X_#\n#_P_#\n#####"


def call(number: int, *actions: Any) -> Json:
    arguments = orjson.dumps({"actions": actions}).decode()
    return {"type": "function_call", "name": "step", "call_id": f"c{number}", "arguments": arguments}


def tool_output(number: int, **result: Any) -> Json:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": orjson.dumps(result).decode()}


def message(role: str, text: str) -> Json:
    return {"type": "message", "role": role, "content": [{"type": "output_text", "text": text}]}


def rollout(*output: Json, request_input: Any = "play", **row: Any) -> Json:
    return {**row, "responses_create_params": {"input": request_input}, "response": {"output": list(output)}}


def replayed(*output: Json, **row: Any) -> Replay:
    found = replay(rollout(*output, **row))
    assert found is not None
    return found


def board_after(*moves: int, start: str = START) -> str:
    game = Game(Room.parse(start))
    for move in moves:
        game.step(move)
    return game.board()


async def test_every_episode_of_a_stack_replays_to_its_reward(tmp_path: Path) -> None:
    output = tmp_path / "rollouts.jsonl"
    async with colocated(load_config(), tmp_path) as stack:
        await collect(stack, output, rows=PUZZLES, repeats=2, limit=30)
    rows = read_rows(output)
    assert len(rows) == 60
    for row in rows:
        found = replay(row)
        assert found is not None
        assert found.frames[-1].total == pytest.approx(row["reward"])
        assert (found.frames[-1].note == "solved") is row["success"]
        assert (len(found.frames) - 1, len(found.optimal) - 1) == (row["moves"], row["optimal_moves"])
        assert any("lost" in frame.note for frame in found.frames) is row["deadlocked"]


def test_each_move_of_a_call_is_a_separate_frame_and_an_optimal_solution_is_beside_it() -> None:
    look, moved = tool_output(0, observation=START), tool_output(1, observation=board_after(3, 1, 4, 4), reward=-0.4)
    found = replayed(call(0), look, call(1, "Left", "up", 4, "4"), moved, **ROW)
    assert [(frame.move, frame.event, frame.note, frame.reward, frame.board) for frame in found.frames] == [
        ("", None, "", None, START),
        ("Left", 1, "", -0.1, board_after(3)),
        ("Up", 1, "", -0.1, board_after(3, 1)),
        ("Right", 1, "lost: can no longer be solved", -0.1, board_after(3, 1, 4)),
        ("Right", 1, "blocked, lost: can no longer be solved", -0.1, board_after(3, 1, 4)),
    ]
    assert found.note == ""
    assert [frame.move for frame in found.optimal] == ["", "Up", "Right", "Up", "Left"]
    assert found.optimal[-1].note == "solved" and found.optimal[-1].total == pytest.approx(10.6)


def test_undone_moves_are_marked() -> None:
    undo = {"type": "function_call", "name": "undo", "call_id": "c2", "arguments": '{"moves": 1}'}
    too_far = {**undo, "call_id": "c3", "arguments": '{"moves": 9}'}
    moved, undone = tool_output(0, observation=board_after(1, 4)), tool_output(2, observation=board_after(1))
    output = [call(0, "Up", "Right"), moved, undo, undone, too_far, tool_output(3, error="no")]
    found = replayed(*output, call(4), tool_output(4, observation=board_after(1)), **ROW)
    assert [(frame.move, frame.board) for frame in found.frames[1:]] == [
        ("Up", board_after(1)),
        ("Right", board_after(1, 4)),
        ("Undo", board_after(1)),
    ]
    assert found.frames[-1].reward == -0.1


def test_the_recorded_number_of_moves_decides_between_environments_with_the_same_boards() -> None:
    lost = tool_output(1, observation=board_after(3, 1, 4), reward=-0.3, total_reward=-0.3, done=True)
    output = [call(0), tool_output(0, observation=START), call(1, "Left", "Up", "Right", "Right"), lost]
    for moves in (3, 4):
        assert len(replayed(*output, **ROW, moves=moves).frames) == moves + 1


def test_the_note_explains_shaping_and_the_verdicts_reward() -> None:
    output_item = tool_output(1, observation=board_after(1), reward=0.1, total_reward=0.1)
    output = [call(0), tool_output(0, observation=START), call(1, "Up"), output_item]
    found = replayed(*output, **ROW, shaping_reward=0.2, reward=-9.8)
    assert re.findall(r"-?\d+\.\d", found.note) == ["0.2", "0.1", "-9.8"]


def test_boards_as_coordinates_are_replayed_for_rooms_from_any_source() -> None:
    look, moved = (tool_output(n, observation=coordinates(board_after(*m))) for n, m in enumerate(((), (1, 4))))
    output = [call(0), look, call(1, "Up", "Right"), moved]
    found = replayed(*output, level_file="mine.xsb", level_index=3)
    assert found.note == ""
    assert [frame.board for frame in found.frames] == [START, board_after(1), board_after(1, 4)]


def test_a_turn_based_episode_is_replayed_from_its_messages() -> None:
    request_input = [message("user", f"{START}\n\n# wall, _ floor\nAnswer with <action>Up</action>")]
    output = [
        message("assistant", "<think>down?</think><action>Up</action>"),
        message("user", board_after(1)),
        message("assistant", "hm"),
        message("user", f"No move found in your message.\n\n{board_after(1)}"),
        message("assistant", "I go <action>right</action>"),
    ]
    found = replayed(*output, request_input=request_input)
    assert [frame.move for frame in found.frames] == ["", "Up", "Right"]
    assert found.frames[-1].board == board_after(1, 4)


def test_the_recorded_room_is_used_if_the_seed_gives_another() -> None:
    start = "#####\n#PXO#\n#####"
    done = tool_output(1, observation=board_after(4, start=start))
    found = replayed(call(0), tool_output(0, observation=start), call(1, "Right"), done, **ROW)
    assert [frame.board for frame in found.frames] == [start, board_after(4, start=start)]
    assert "a different room" in found.note


def test_boards_that_contradict_the_rules_are_shown_as_recorded() -> None:
    elsewhere = "#####\n#P_O#\n#_X_#\n#___#\n#####"
    output_item = tool_output(1, observation=elsewhere, reward=0.5, total_reward=0.5)
    found = replayed(call(0), tool_output(0, observation=START), call(1, "Up", "Up"), output_item, **ROW)
    assert [frame.board for frame in found.frames] == [START, elsewhere]
    assert (found.frames[1].move, found.frames[1].reward, found.frames[1].event) == ("Up, Up", 0.5, 1)
    assert "recorded boards" in found.note and not found.optimal


@pytest.mark.parametrize("wording", ["{}", "The board:\n{}\nYour move?", "```\n{}\n```"])
def test_boards_are_found_in_text(wording: str) -> None:
    spaced = "\n".join(" ".join(line) for line in START.split("\n"))
    assert list(boards_in(wording.format(START))) == list(boards_in(wording.format(spaced))) == [START]


@pytest.mark.parametrize(
    "row", [{}, {"seed": 1}, {"level": "Level 5"}, {"question": "1 + 1", "seed": 7}, {"seed": "x", "num_boxes": 1}]
)
def test_rows_of_other_environments_are_ignored(row: Json) -> None:
    assert replay(rollout(message("assistant", "42"), **row)) is None


atoms = (
    st.none() | st.integers() | st.floats() | st.text(max_size=6) | st.sampled_from([START, "Up", "message", "user"])
)
keys = st.sampled_from(["type", "role", "content", "arguments", "output", "call_id", "text", "actions", "observation"])
anything = st.recursive(
    atoms | st.sampled_from(["function_call", "function_call_output", "assistant", "c", "Up", "<action>Up</action>"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=60)
@given(st.lists(anything | st.dictionaries(keys, anything), max_size=4), anything, anything)
def test_untrusted_rows_cause_no_error(output: list[Any], given_input: Any, seed: Any) -> None:
    row = rollout(request_input=given_input, seed=seed, dim_room=[5, 5])
    row["response"]["output"] = output
    found = replay(row)
    assert found is None or found.frames
