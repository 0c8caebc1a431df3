"""Claude Code, Codex and OpenCode, as they are on npm, as the agents of episodes: tools over MCP, exact tokens."""

from __future__ import annotations

import json
import os
import re
from itertools import chain
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from rollyard.agents.program_agent.app import ProgramAgent
from rollyard.records.data_files import INSTALLED
from rollyard.records.types import Json
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verdict, Verification, tool
from rollyard.responses_api_models.vllm_model.app import VllmModel, VllmModelSettings
from rollyard.services.server.app import Context
from rollyard.training.training_sequence import SequenceRules, training_sequences
from tests.support.in_process import episode_servers
from tests.support.token_engine import TokenEngine
from tests.support.toy_tokenizer import END, encode_letters
from tests.support.waiting import deadline_s

BIN = Path(__file__).parent / "node_modules" / ".bin"
README = INSTALLED / "agents/program_agent/README.md"
TASK = '--help: open the "door".\n\n  Push  it.'
NAMES = ["claude", pytest.param("codex", marks=pytest.mark.smoke), "opencode"]
SHELLS: dict[str, Json] = {
    "claude": {"name": "Bash", "arguments": {"command": "echo seen", "description": "look"}},
    "codex": {"name": "exec_command", "arguments": {"cmd": "echo seen"}},
    "opencode": {"name": "bash", "arguments": {"command": "echo seen", "description": "look"}},
}
SUB_TASK: Json = {"description": "look", "prompt": "Look at it."}
SUB_AGENTS: dict[str, Json] = {  # Codex goes on while its sub-agent works, so that either may get a turn first
    "claude": {"name": "Agent", "arguments": {**SUB_TASK, "subagent_type": "general-purpose"}},
    "opencode": {"name": "task", "arguments": {**SUB_TASK, "subagent_type": "general"}},
}


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")


def documented(name: str) -> Json:
    """The settings of the program that a user copies."""
    blocks = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", README.read_text(), re.DOTALL))
    [found] = [block for block in blocks if name in str(block.get("program"))]
    return cast(Json, found)


class Door(Environment[EnvironmentSettings]):
    user_template = "{question}"
    pushed = 0

    @tool
    async def push(self, times: int) -> str:
        """Push the door."""
        self.pushed += times
        return f"Pushed {self.pushed} times."

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=float(self.pushed), success=response.text == "The door is open.")


def push(name: str, times: int) -> Json:
    tool_name = "environment_push" if name == "opencode" else "mcp__environment__push"
    return {"name": tool_name, "arguments": {"times": times}}


def turn(text: str, *calls: Json) -> list[int]:
    """The tokens of a turn, as no tokenizer would encode its text."""
    written = [text, *(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)]
    return [*encode_letters("\n".join(written)), END]


async def played(name: str, turns: list[list[int]], **settings: Any) -> Any:
    """The rollout of the program with a policy that generates these turns."""
    engine = TokenEngine(turns, max_model_len=1_000_000)
    options: Json = {"base_url": "http://engine:1/v1", "model": "tiny", "return_token_id_information": True}
    options |= {"logprobs_mode": "processed_logprobs", "text_tool_parser": "hermes"}

    def model(context: Context) -> VllmModel:
        return VllmModel(VllmModelSettings(**options), context)

    async with episode_servers(Door, model, ProgramAgent, **{**documented(name), **settings}) as servers:
        servers.transport.mount("http://engine:1", engine)
        row: Json = {"question": TASK}
        answer = await servers.client.post("agent", "/run", json.dumps(row).encode(), 3 * deadline_s())
    return json.loads(answer.body)


def trained(rollout: Any) -> list[list[int]]:
    """Of each segment, the tokens with a loss."""
    sequences = training_sequences(rollout, SequenceRules())
    return [
        [token for token, has_loss in zip(one.completion_ids, one.loss_mask, strict=True) if has_loss]
        for one in sequences
    ]


@pytest.mark.parametrize("name", NAMES)
async def test_an_episode_is_one_sequence_with_every_sampled_token(name: str) -> None:
    calls = [push(name, 2), push(name, 3)], [SHELLS[name]]
    turns = [turn("I push twice.", *calls[0]), turn("I look.", *calls[1]), turn("The door is open.")]
    rollout = await played(name, turns)
    printed = rollout["program_run"]["output"]
    assert (rollout["reward"], rollout["success"], rollout["finish_reason"]) == (5.0, True, "answered"), printed
    assert rollout["token_trail"] == {"turns": 2, "breaks": 0, "segments": 1}
    assert trained(rollout) == [[token for one in turns for token in one]]
    output = rollout["response"]["output"]
    results = [str(item["output"]) for item in output if item["type"] == "function_call_output"]
    assert ["Pushed 2 times." in results[0], "Pushed 5 times." in results[1], "seen" in results[2]] == [True] * 3
    asked = [item["content"] for item in output if item.get("role") == "user"]
    assert asked[-1] in (TASK, [{"type": "input_text", "text": TASK}])


@pytest.mark.parametrize("name", SUB_AGENTS)
async def test_a_sub_agent_is_a_segment_of_its_own(name: str) -> None:
    turns = [turn("Ask.", SUB_AGENTS[name]), turn("I push.", push(name, 2)), turn("It is done."), turn("The end.")]
    rollout = await played(name, turns)
    assert (rollout["reward"], rollout["finish_reason"]) == (2.0, "answered"), rollout["program_run"]["output"]
    assert (rollout["token_trail"]["breaks"], rollout["token_trail"]["segments"]) == (0, 2)
    assert sorted(trained(rollout)) == sorted([turns[0] + turns[3], turns[1] + turns[2]])


def compacting(name: str) -> Json:
    """The settings of the program when it sums up its history again and again."""
    program, env = documented(name)["program"], documented(name)["env"]
    if name == "claude":
        return {"env": {**env, "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000", "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE": "1"}}
    if name == "codex":
        return {"program": [*program[:2], "-c", "model_auto_compact_token_limit=100", *program[2:]]}
    config = env["OPENCODE_CONFIG_CONTENT"].replace("{}", '{"limit": {"context": 20000, "output": 1000}}')
    return {"env": {**env, "OPENCODE_CONFIG_CONTENT": config}}


@pytest.mark.parametrize("name", SHELLS)
async def test_a_program_that_sums_up_its_history_loses_no_sampled_token(name: str) -> None:
    turns = [turn("I push.", push(name, 2)), turn("Again.", push(name, 3)), turn("The door is open.")]
    rollout = await played(name, turns, max_steps=9, **compacting(name))
    calls = rollout["timings"]["model_calls"]
    assert calls >= 3 and rollout["reward"] >= 2.0, rollout["program_run"]["output"]
    assert len(trained(rollout)) == rollout["token_trail"]["segments"] > 1
    sampled = (turns[min(at, 2)] for at in range(calls))
    assert sorted(chain(*trained(rollout))) == sorted(chain(*sampled))


@pytest.mark.parametrize("name", NAMES)
async def test_a_program_ends_at_the_limit_of_turns_and_is_graded_as_truncated(name: str) -> None:
    rollout = await played(name, [turn("I push.", push(name, 1))], max_steps=2)
    assert (rollout["finish_reason"], rollout["truncated"], rollout["reward"]) == ("max_steps", True, 2.0)
    assert len(trained(rollout)) == 1 and rollout["program_run"]["exit_status"] is None
