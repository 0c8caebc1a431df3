"""Claude Code and Codex, as they are on npm, as the agents of episodes: tools over MCP, exact tokens, no drift."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollyard.agents.program_agent.app import ProgramAgent
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
PROVIDER = 'model_providers.policy={name="policy", base_url="{base_url}", env_key="POLICY_KEY", wire_api="responses"}'
SERVER = 'mcp_servers.environment={url="{mcp_url}", bearer_token_env_var="POLICY_KEY"}'
PROGRAMS: dict[str, Json] = {
    "claude": {
        "program": [
            *(str(BIN / "claude"), "-p", "{instruction}", "--model", "policy", "--mcp-config", "{mcp_file}"),
            *("--allowedTools", "mcp__environment__push", "Bash"),
        ],
        "env": {
            **dict.fromkeys(
                ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS"), "1"
            ),
            "ANTHROPIC_BASE_URL": "{anthropic_url}",
            "ANTHROPIC_API_KEY": "{api_key}",
        },
    },
    "codex": {
        "program": [
            *(str(BIN / "codex"), "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
            *("-m", "policy", "-c", 'model_provider="policy"', "-c", PROVIDER, "-c", SERVER),
            *("-c", 'web_search="disabled"', "{instruction}"),
        ],
        "env": {"POLICY_KEY": "{api_key}"},
    },
}
SHELLS: dict[str, Json] = {
    "claude": {"name": "Bash", "arguments": {"command": "echo seen", "description": "look"}},
    "codex": {"name": "exec_command", "arguments": {"cmd": "echo seen"}},
}


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


def turn(text: str, call: Json | None = None) -> list[int]:
    """The tokens of a turn, as no tokenizer would encode its text."""
    written = f"{text}\n<tool_call>\n{json.dumps(call)}\n</tool_call>" if call else text
    return [*encode_letters(written), END]


@pytest.mark.parametrize("name", ["claude", pytest.param("codex", marks=pytest.mark.smoke)])
async def test_an_episode_is_one_sequence_with_every_sampled_token(name: str) -> None:
    pushes: list[Json] = [{"name": "mcp__environment__push", "arguments": {"times": times}} for times in (2, 3)]
    turns = [
        turn("I push.", pushes[0]),
        turn("Again.", pushes[1]),
        turn("I look.", SHELLS[name]),
        turn("The door is open."),
    ]
    engine = TokenEngine(turns, max_model_len=1_000_000)
    options: Json = {"base_url": "http://engine:1/v1", "model": "tiny", "return_token_id_information": True}
    options |= {"logprobs_mode": "processed_logprobs", "text_tool_parser": "hermes"}

    def model(context: Context) -> VllmModel:
        return VllmModel(VllmModelSettings(**options), context)

    async with episode_servers(Door, model, ProgramAgent, **PROGRAMS[name]) as servers:
        servers.transport.mount("http://engine:1", engine)
        row: Json = {"question": "Open the door."}
        answer = await servers.client.post("agent", "/run", json.dumps(row).encode(), deadline_s())
    rollout: Any = json.loads(answer.body)
    printed = rollout["program_run"]["output"]
    assert (rollout["reward"], rollout["success"], rollout["finish_reason"]) == (5.0, True, "answered"), printed
    assert rollout["token_trail"] == {"turns": 3, "breaks": 0, "segments": 1}
    (sequence,) = training_sequences(rollout, SequenceRules())
    pairs = zip(sequence.completion_ids, sequence.loss_mask, strict=True)
    assert [token for token, has_loss in pairs if has_loss] == [token for one in turns for token in one]
    results = [item["output"] for item in rollout["response"]["output"] if item["type"] == "function_call_output"]
    assert ["Pushed 2 times." in str(results[0]), "seen" in str(results[2])] == [True, True]
