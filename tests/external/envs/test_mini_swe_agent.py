"""mini-swe-agent, as it is on the package index, as the agent of episodes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rollyard.agents.program_agent.app import ProgramAgent
from rollyard.records.types import Json
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verdict, Verification
from rollyard.training.training_sequence import SequenceRules, training_sequences
from tests.support.in_process import episode_servers
from tests.support.mini_swe_agent import SUBMIT, model, program, turn
from tests.support.token_engine import TokenEngine
from tests.support.waiting import deadline_s


class Sums(Environment[EnvironmentSettings]):
    user_template = "{question}"

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=float(response.text.strip() == f"The answer is {self.task['answer']}."))


async def played(turns: list[list[int]]) -> Json:
    engine = TokenEngine(turns)
    row = {"question": "What is 19 + 23?", "answer": "42"}
    async with episode_servers(Sums, model, ProgramAgent, **program(Path(sys.prefix))) as servers:
        servers.transport.mount("http://engine:1", engine)
        answer = await servers.client.post("agent", "/run", json.dumps(row).encode(), deadline_s())
    played: Json = json.loads(answer.body)
    return played


def trained(row: Json) -> list[list[int]]:
    """The tokens with a loss, of each sequence."""
    return [
        [token for token, has_loss in zip(one.completion_ids, one.loss_mask, strict=True) if has_loss]
        for one in training_sequences(row, SequenceRules())
    ]


@pytest.mark.smoke
async def test_an_episode_has_its_exact_tokens_and_the_verdict_of_the_environment() -> None:
    turns = [
        turn("I compute.", "echo $((19 + 23)) > answer.txt"),
        turn("I look.", "cat answer.txt", "ls"),
        turn("The answer is 42.", SUBMIT),
    ]
    row = await played(turns)
    run = row["program_run"]
    assert (run["exit_status"], run["conversations"][0]["params"]["tools"][0]["name"]) == (0, "bash")
    assert (row["reward"], row["finish_reason"], row["timings"]["model_calls"]) == (1.0, "answered", 3)
    assert row["token_trail"] == {"turns": 2, "breaks": 0, "segments": 1}
    assert trained(row) == [[*turns[0], *turns[1], *turns[2]]]
    outputs = [item["output"] for item in row["response"]["output"] if item["type"] == "function_call_output"]
    assert [json.loads(output)["output"] for output in outputs] == ["", "42\n", "answer.txt\n"]


async def test_a_turn_that_the_program_leaves_out_of_its_history_is_trained_on_as_a_segment_of_its_own() -> None:
    """mini-swe-agent answers a turn without a call with a message, and shows the model only that."""
    turns = [
        turn("I begin.", "true"),
        turn("I only talk."),
        turn("The answer is 42.", SUBMIT),
    ]
    row = await played(turns)
    assert (row["reward"], row["finish_reason"]) == (1.0, "answered")
    assert row["token_trail"] == {"turns": 2, "breaks": 0, "segments": 2}
    assert [one["branches_off"] for one in row["program_run"]["conversations"]] == [None, [0, 0]]
    assert trained(row) == [[*turns[0], *turns[1]], turns[2]]
