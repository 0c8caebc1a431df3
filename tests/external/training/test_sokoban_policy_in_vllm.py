"""The shipped Sokoban policy in a real vLLM plays as its training data promise, token by token."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

from examples.sokoban_policy import make_rooms
from examples.sokoban_policy.layouts import EVALUATION_SEED, Layout, distinct_rooms, position_of
from examples.sokoban_policy.play import play
from examples.sokoban_policy.traces import Encoder
from rollyard.records.data_files import INSTALLED
from rollyard.records.types import Json
from rollyard.training.training_sequence import SequenceRules, training_sequences
from tests.external.vllm.engine import IN_ONE_WORKER
from tests.support.stacks import collect, load_config, processes, read_rows

POLICY = INSTALLED / "examples" / "sokoban_policy" / "model"
ROOMS = 20
ENGINE = "policy_model.responses_api_models.local_vllm_model"


@pytest_asyncio.fixture(scope="module")
async def rollouts(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[Json]]:
    """One rollout of each of ROOMS unseen rooms at temperature 0, with the config of `make demo-lm`.

    The engine has one process fewer than there.
    """
    folder = tmp_path_factory.mktemp("sokoban_lm")
    make_rooms.main(["--num-examples", str(ROOMS), "--output", str(folder / "rooms.jsonl")])
    config = load_config(
        f"{ENGINE}.model={POLICY}",
        f"+{ENGINE}.extra_flags.distributed_executor_backend=uni",
        *(f"+{ENGINE}.environment.{name}='{value}'" for name, value in IN_ONE_WORKER.items()),
        f"+{ENGINE}.vllm_command=[{Path(sys.executable).with_name('vllm')}]",
        config="configs/sokoban_lm.yaml",
    )
    async with processes(config, folder) as stack:
        state, progress = await collect(
            stack, folder / "rollouts.jsonl", rows=folder / "rooms.jsonl", repeats=1, params={"temperature": 0.0}
        )
    assert (state, progress.failed) == ("complete", 0)
    yield sorted(read_rows(folder / "rollouts.jsonl"), key=lambda row: int(row["_ng_task_index"]))


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
