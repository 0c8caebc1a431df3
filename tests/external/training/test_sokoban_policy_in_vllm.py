"""The shipped Sokoban policy in a real vLLM plays as its training data promise, token by token."""

from __future__ import annotations

import subprocess

import pytest
import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

from examples.sokoban_policy.layouts import EVALUATION_SEED, Layout, distinct_rooms, position_of
from examples.sokoban_policy.play import play
from examples.sokoban_policy.traces import Encoder
from rollyard.records.data_files import INSTALLED
from rollyard.records.types import Json
from rollyard.training.training_sequence import SequenceRules, training_sequences
from tests.external.training.train_command import training_s
from tests.support.commands import command_environ
from tests.support.stacks import read_rows

POLICY = INSTALLED / "examples" / "sokoban_policy" / "model"
ROOMS = 20


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> list[Json]:
    """One rollout of each of ROOMS unseen rooms at temperature 0: those of `make demo-lm`."""
    folder = tmp_path_factory.mktemp("sokoban_lm")
    for name in ("configs", "examples"):
        (folder / name).symlink_to(INSTALLED / name)
    environ = command_environ({"ROOMS": str(ROOMS), "PYTHONPATH": str(folder)})
    done = subprocess.run(
        ["sh", "configs/demo_lm.sh"], cwd=folder, env=environ, capture_output=True, text=True, timeout=training_s()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{ROOMS} of {ROOMS} rollouts measured" in done.stdout
    [output] = folder.glob("results/demo-lm-*/rollouts.jsonl")
    return sorted(read_rows(output), key=lambda row: int(row["_ng_task_index"]))


def test_the_recorded_tokens_are_those_of_the_training_data(rollouts: list[Json]) -> None:
    encoder = Encoder(AutoTokenizer.from_pretrained(POLICY))
    for row, room in zip(rollouts, distinct_rooms(ROOMS, EVALUATION_SEED), strict=True):
        (sequence,) = training_sequences(row, SequenceRules(constrained_turns="mask"))
        found = sequence.prompt_ids + sequence.completion_ids
        layout, position = Layout(room.fixed), position_of(room)
        expected = [*encoder.start, encoder.calls[0], encoder.end]
        for token in (token for token in found if token in encoder.calls[1:]):
            expected += [*encoder.board(layout.room(position).board()), token, encoder.end]
            position = layout.after(position, encoder.calls.index(token))
        assert found == expected


def test_the_policy_solves_the_same_unseen_rooms_as_without_servers(rollouts: list[Json]) -> None:
    model = Qwen3ForCausalLM.from_pretrained(POLICY, dtype=torch.float32).eval()
    expected = play(model, AutoTokenizer.from_pretrained(POLICY), distinct_rooms(ROOMS, EVALUATION_SEED)).solved
    found = [bool(row["success"]) for row in rollouts]
    # Differences of 1e-6 in the logits may decide between two moves.
    assert sum(one == other for one, other in zip(found, expected, strict=True)) >= 0.9 * ROOMS
    assert sum(found) >= 0.5 * ROOMS
