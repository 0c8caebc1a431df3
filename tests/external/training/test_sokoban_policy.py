"""The shipped Sokoban policy: its tokens are those of the conversations that the stack records, and it solves rooms."""

from __future__ import annotations

import asyncio
import json
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3ForCausalLM

from examples.sokoban_policy.layouts import (
    STEPS,
    Layout,
    distinct_rooms,
    is_test_layout,
    position_of,
    puzzle_of_layout,
    rooms,
)
from examples.sokoban_policy.make_data import starts
from examples.sokoban_policy.play import play
from examples.sokoban_policy.traces import IGNORED, Encoder, trace_of
from examples.sokoban_policy.vocabulary import MOVES, TEMPLATE, build_tokenizer, prompts
from rollyard.resources_servers.grl_sokoban.app import GrlSokoban
from rollyard.resources_servers.grl_sokoban.game import Room
from rollyard.resources_servers.grl_sokoban.generate_test_examples import PromptBuilder
from rollyard.resources_servers.grl_sokoban.solver import solve
from rollyard.resources_servers.grl_sokoban.task import NAMES, SokobanSettings, Symmetry

POLICY = Path(__file__).parents[3] / "examples" / "sokoban_policy"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(POLICY / "model")


def messages_of(room: Room, moves: list[int]) -> list[dict[str, Any]]:
    """The messages of an episode up to the last move, as vLLM passes them to the chat template."""
    system, user = prompts()
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    environment = GrlSokoban({"level": room.board()}, SokobanSettings())
    for actions in ([], *([MOVES[move - 1]] for move in moves)):
        call = {"id": "1", "type": "function", "function": {"name": "step", "arguments": {"actions": actions}}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        result = json.dumps(asyncio.run(environment.step([*actions])), ensure_ascii=False, separators=(",", ":"))
        messages.append({"role": "tool", "tool_call_id": "1", "content": result})
    return messages[:-1]


def test_a_trace_has_the_tokens_of_the_conversation_with_the_environment(tokenizer: PreTrainedTokenizerFast) -> None:
    encoder, rng = Encoder(tokenizer), Random(0)
    for room in islice(rooms(0, held_out=False), 20):
        layout = Layout(room.fixed)
        trace = trace_of(encoder, layout, position_of(room), rng, noise=0.3, most_turns=30)
        moves = [encoder.calls.index(token) for token in trace.ids if token in encoder.calls[1:]]
        text = tokenizer.apply_chat_template(
            messages_of(room, moves), tools=PromptBuilder().create_params()["tools"], tokenize=False
        )
        expected = tokenizer.encode(text, add_special_tokens=False)
        assert trace.ids == expected[: len(trace.ids)]
        assert tokenizer.decode(trace.ids) == text.removesuffix("<|im_end|>\n")


def test_the_label_of_each_turn_is_a_move_of_a_shortest_solution(tokenizer: PreTrainedTokenizerFast) -> None:
    encoder = Encoder(tokenizer)
    room = next(room for room in rooms(0, held_out=False) if Layout(room.fixed).distances[position_of(room)] > 5)
    layout, position = Layout(room.fixed), position_of(room)
    trace = trace_of(encoder, layout, position, Random(1), noise=0.5, most_turns=30)
    turns = [(ours, label) for ours, label in zip(trace.ids, trace.labels, strict=True) if label in encoder.calls]
    assert turns[0] == (encoder.calls[0], encoder.calls[0])
    for played, label in turns[1:]:
        after = layout.after(position, encoder.calls.index(label))
        assert layout.distances[after] == layout.distances[position] - 1
        position = layout.after(position, encoder.calls.index(played))
    assert any(played != label for played, label in turns) and trace.labels.count(IGNORED) > 100


def test_distances_are_those_of_the_solver() -> None:
    for room in islice(rooms(0, held_out=False), 50):
        layout, solution = Layout(room.fixed), solve(room)
        assert solution is not None and layout.distances[position_of(room)] == solution.moves
        assert solution.path[0] in layout.best_moves(position_of(room))


def test_no_board_of_the_evaluation_occurs_in_training_in_any_orientation() -> None:
    held_out = {puzzle_of_layout(room.fixed) for room in distinct_rooms(250, 1_000_000_000)}
    trained = {puzzle_of_layout(layout.fixed) for layout, _ in islice(starts(0, Random(0)), 2500)}
    assert len(held_out) > 50 and len(trained) > 250
    # A layout is the board without player and box, so that all boards of a room have the room's layout.
    assert not held_out & trained


def test_all_rotations_reflections_and_positions_of_a_room_are_in_the_same_split() -> None:
    for room in islice(rooms(0, held_out=True), 50):
        images = [Symmetry.named(name).room(room) for name in NAMES]
        assert all(is_test_layout(image.fixed) for image in images)
        assert len({puzzle_of_layout(image.fixed) for image in images}) == 1
        assert all(Layout(room.fixed).after(position_of(room), move)[0] >= 0 for move in STEPS)


@pytest.mark.parametrize("folder", ["model", "early"])
def test_the_shipped_tokenizer_is_that_of_the_sources_and_keeps_every_text(folder: str) -> None:
    shipped, built = AutoTokenizer.from_pretrained(POLICY / folder), build_tokenizer()
    assert shipped.get_vocab() == built.get_vocab() and shipped.chat_template == TEMPLATE.read_text()
    for text in ("Solve this: ###\n#√S#", "Grüße, 世界 🙂\t\r\n", "<tool_call>\n{}\n</tool_call>", *prompts()):
        assert shipped.decode(shipped.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize(("folder", "least", "most"), [("model", 0.7, 1.0), ("early", 0.2, 0.4)])
def test_the_shipped_policies_solve_their_share_of_unseen_rooms(folder: str, least: float, most: float) -> None:
    model = Qwen3ForCausalLM.from_pretrained(POLICY / folder, dtype=torch.float32).eval()
    assert not model.config.tie_word_embeddings
    played = play(model, AutoTokenizer.from_pretrained(POLICY / folder), distinct_rooms(100, 1_000_000_000))
    assert least <= played.success <= most
