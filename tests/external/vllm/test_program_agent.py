"""Programs as agents of a policy in a real vLLM: what is recorded is what the engine has read, sampled and reported."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import orjson
import pytest

from rollyard.agents.program_agent.app import ProgramAgent
from rollyard.records.data_files import INSTALLED
from rollyard.records.types import Json
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verdict, Verification
from rollyard.responses_api_models.vllm_model.app import VllmModel, VllmModelSettings
from rollyard.services.http.request import Receive, Scope, Send
from rollyard.services.server.app import Context
from rollyard.training.training_sequence import SequenceRules, training_sequences
from tests.external.vllm.engine import Engine
from tests.support import mini_swe_agent
from tests.support.in_process import episode_servers
from tests.support.waiting import deadline_s

MINI = INSTALLED / ".venv-envs"
"""The environment of test-envs, which contains mini-swe-agent."""
COMMAND = r'<tool_call>\n\{"name": "bash", "arguments": \{"command": "echo [a-f0-9 ]{1,12}"\}\}\n</tool_call>'


class Task(Environment[EnvironmentSettings]):
    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=1.0)


@dataclass
class Tap:
    """Passes requests to an engine, and keeps what it generated."""

    url: str
    generated: list[tuple[Json, Json]] = field(default_factory=list)
    """Requests and responses of generations, in the order of the responses."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive()).get("body", b"")
        async with httpx.AsyncClient(timeout=deadline_s()) as client:
            answer = await client.request(
                scope["method"], self.url + scope["path"], content=body, headers={"content-type": "application/json"}
            )
        if scope["path"] == "/inference/v1/generate" and answer.status_code == 200:
            self.generated.append((orjson.loads(body), answer.json()))
        headers = [(b"content-type", answer.headers["content-type"].encode())]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": answer.content})


async def played(engine: Engine, agent: Json, **settings: object) -> tuple[Json, list[tuple[Json, Json]]]:
    """Return the rollout of a program, and the generations of the engine."""
    tap = Tap(engine.url)
    options: Json = {"base_url": "http://engine:1/v1", "model": "tiny", "return_token_id_information": True, **settings}
    options |= {"logprobs_mode": "processed_logprobs"}

    def model(context: Context) -> VllmModel:
        return VllmModel(VllmModelSettings(**options), context)

    async with episode_servers(Task, model, ProgramAgent, **agent) as servers:
        servers.transport.mount("http://engine:1", tap)
        row = {"responses_create_params": {"input": "Begin.", "max_output_tokens": 200}}
        answer = await servers.client.post("agent", "/run", json.dumps(row).encode(), deadline_s())
    rollout: Json = json.loads(answer.body)
    return rollout, [pair for pair in tap.generated if not pair[0]["sampling_params"].get("ignore_eos")]


def turns_of(row: Json) -> list[tuple[list[int], list[int], list[float]]]:
    names = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
    items = [item for item in row["response"]["output"] if "prompt_token_ids" in item]
    return sorted((item[names[0]], item[names[1]], item[names[2]]) for item in items)


def reported(generated: list[tuple[Json, Json]]) -> list[tuple[list[int], list[int], list[float]]]:
    found = []
    for request, response in generated:
        (choice,) = response["choices"]
        log_probs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        found.append((request["token_ids"], choice["token_ids"], log_probs))
    return sorted(found)


def trained(row: Json, rules: SequenceRules) -> list[int]:
    sequences = training_sequences(row, rules)
    return sorted(
        token
        for one in sequences
        for token, has_loss in zip(one.completion_ids, one.loss_mask, strict=True)
        if has_loss
    )


@pytest.mark.parametrize(
    ("scene", "turns", "segments"),
    [("linear", 3, 1), ("parallel", 5, 4), ("sub_agent", 4, 2), ("cut", 4, 2), ("dialects", 4, 3)],
)
async def test_each_dialect_and_parallel_calls_record_the_tokens_of_the_engine(
    engine: Engine, scene: str, turns: int, segments: int
) -> None:
    env = {"OPENAI_BASE_URL": "{base_url}", "OPENAI_API_KEY": "{api_key}", "ANTHROPIC_BASE_URL": "{anthropic_url}"}
    script = str(Path(__file__).parents[2] / "support" / "scripted_program.py")
    row, generated = await played(engine, {"program": [sys.executable, script, scene, "{instruction}"], "env": env})
    assert turns_of(row) == reported(generated) and len(generated) == turns, row["program_run"]
    assert row["token_trail"]["segments"] == segments and row["token_trail"]["breaks"] == 0
    sampled = [token for _, response in generated for token in response["choices"][0]["token_ids"]]
    assert trained(row, SequenceRules()) == sorted(sampled)


@pytest.mark.skipif(not MINI.is_dir(), reason="mini-swe-agent is in the environment of make test-envs")
async def test_mini_swe_agent_records_the_tokens_of_the_engine(engine: Engine) -> None:
    agent = {**mini_swe_agent.program(MINI), "max_steps": 3}
    settings = {"strict_tools": False, "extra_body": {"structured_outputs": {"regex": COMMAND}}}
    row, generated = await played(engine, agent, **settings)
    assert turns_of(row) == reported(generated) and len(generated) == 3, row["program_run"]
    assert (row["token_trail"]["segments"], row["token_trail"]["breaks"]) == (1, 0)
    outputs = [item for item in row["response"]["output"] if item["type"] == "function_call_output"]
    assert [json.loads(item["output"])["returncode"] for item in outputs] == [0, 0]
    (sequence,) = training_sequences(row, SequenceRules(constrained_turns="reweight"))
    assert sequence.loss_tokens == sum(len(response["choices"][0]["token_ids"]) for _, response in generated)
