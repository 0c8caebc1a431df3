"""ng_train improves a policy through the unmodified mini-swe-agent, whose episodes have several segments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from transformers import AddedToken, AutoModelForCausalLM, GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from rollyard.records.data_files import INSTALLED
from rollyard.records.types import Json
from tests.external.training.train_command import SMALL_ENGINE, ng_train
from tests.external.vllm.tiny_model import tokenizer
from tests.support.mini_swe_agent import program

MINI = INSTALLED / ".venv-envs"
"""The environment of test-envs, which contains it."""
RIGHT = "echo right"
CHOICES = (
    ("I go right.", RIGHT),
    ("I go on.", "echo one"),
    ("I do both.", "echo two", "echo three"),
    ("I only talk.",),
    ("I only think.",),
)
"""The turns that the policy can make: a text and commands. mini-swe-agent leaves one without a command out of its
history, so that the next turn begins a segment."""
TURNS = 6
"""Turns of an episode."""
STEPS = 5
APP = f'''
import json

from rollyard import Environment, Verdict, Verification, serve


class Right(Environment):
    """The reward is the share of the turns that run the right command."""

    user_template = "{{question}}"

    async def verify(self, response: Verification) -> Verdict:
        calls = [item["arguments"] for item in response.response["output"] if item["type"] == "function_call"]
        return Verdict(reward=[json.loads(call)["command"] for call in calls].count({RIGHT!r}) / {TURNS})


server = serve(Right)
'''
KEYS = (
    *("environments=[right]", "config_paths=[engine.yaml]", "groups_per_step=1", "group_size=6"),
    *(f"max_steps={STEPS}", "num_samples_in_parallel=3", "responses_create_params.max_output_tokens=8"),
    *("optimizer.learning_rate=0.02", "optimizer.max_seq_len=4096", "optimizer.max_grad_norm=100"),
)


def written(text: str, *commands: str) -> str:
    calls = [json.dumps({"name": "bash", "arguments": {"command": command}}) for command in commands]
    return "\n".join([text, *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)])


def write_policy(folder: Path) -> list[int]:
    """Write a policy whose turns are one token each, drawn evenly from CHOICES. Return these tokens."""
    words, texts = tokenizer(), [written(*choice) for choice in CHOICES]
    words.add_tokens([AddedToken(text, normalized=False) for text in texts])
    turns: list[int] = words.convert_tokens_to_ids(texts)
    end, pad = words.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    (asked,) = words.encode("\n")
    config = Qwen3Config(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        eos_token_id=end,
        pad_token_id=pad,
        bos_token_id=None,
        dtype="float32",
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config).to(torch.float32)
    # The next token depends on the last one alone: what the layer adds is small beside the embeddings.
    into, out = model.model.embed_tokens.weight, model.lm_head.weight
    with torch.no_grad():
        into.normal_()
        out.zero_()
        into[turns] = into[end].clone()
        out[turns] = into[asked] / 4
        out[end] = into[end] / 4
    model.generation_config = GenerationConfig(eos_token_id=[end, pad], pad_token_id=pad)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return turns


def write_folder(folder: Path) -> None:
    place = folder / "resources_servers" / "right"
    (place / "configs").mkdir(parents=True)
    (place / "app.py").write_text(APP)
    agent: Json = {
        "entrypoint": "app.py",
        "max_steps": TURNS,
        "resources_server": {"type": "resources_servers", "name": "right_resources_server"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
        **program(MINI),
    }
    config = {
        "right_resources_server": {"resources_servers": {"right": {"entrypoint": "app.py"}}},
        "right_agent": {"responses_api_agents": {"program_agent": agent}},
    }
    OmegaConf.save(OmegaConf.create(config), place / "configs" / "right.yaml")
    engine: Any = OmegaConf.create(SMALL_ENGINE)
    engine.policy_model.responses_api_models.local_vllm_model.tool_call_parser = "hermes"
    OmegaConf.save(engine, folder / "engine.yaml")
    (folder / "rows.jsonl").write_text(json.dumps({"question": "Run the right command."}))


def choices(model: Path, rows: list[Json], tokens: list[int]) -> torch.Tensor:
    """The probability of each turn, mean over what the policy has read."""
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    found = []
    for item in (item for row in rows for item in row["response"]["output"] if "prompt_token_ids" in item):
        with torch.no_grad():
            logits = policy(torch.tensor([item["prompt_token_ids"]]), logits_to_keep=1).logits[0, -1]
        found.append(logits.softmax(-1)[tokens])
    return torch.stack(found).mean(0)


@pytest.mark.skipif(not MINI.is_dir(), reason="mini-swe-agent is in the environment of make test-envs")
def test_a_policy_improves_through_mini_swe_agent(tmp_path: Path) -> None:
    tokens = write_policy(tmp_path / "model")
    write_folder(tmp_path)
    with ng_train(*KEYS, folder=tmp_path) as running:
        assert running.wait() == 0, running.printed
        steps, rows = running.steps(), running.rows(STEPS)
    assert sorted(steps) == list(range(1, STEPS + 1))
    assert not any(one["train/failed_rollouts"] for one in steps.values())
    trails = [row["token_trail"] for step in steps for row in running.rows(step)]
    assert max(trail["segments"] for trail in trails) > 1 and not any(trail["breaks"] for trail in trails)
    folders = tmp_path / "model", running.output / "checkpoints" / f"step_{STEPS:06d}"
    before, after = (choices(folder, rows, tokens) for folder in folders)
    assert before.sum() > 0.95 and before[0] < 0.25 and after[0] > 0.8, (before, after)
