"""A random policy of 80,000 weights, and groups of rollouts that it might have played."""

from __future__ import annotations

import random
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from rollyard.training.groups import (
    EndingRules,
    GroupMember,
    RolloutGroup,
    Scale,
    Treatment,
    groups_of,
    member_of_failure,
    member_of_row,
)
from rollyard.training.training_sequence import SequenceRules
from tests.external.vllm.tiny_model import VOCABULARY, tokenizer
from tests.unit.training.recorded_turns import row, turn


def make_model(seed: int = 0) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=False,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config).eval()


def make_tokenizer() -> PreTrainedTokenizerFast:
    return tokenizer()


def make_groups(
    model: Any,
    scale: Scale = "group",
    *,
    seed: int = 0,
    noise: float = 0.3,
    count: int = 4,
    rules: SequenceRules | None = None,
) -> list[RolloutGroup]:
    """Groups of played, truncated, failed and slow rollouts of one to three turns. The recorded log-probabilities
    differ from the model's own by up to `noise` nats, so that some ratios are clipped.
    """
    draw = random.Random(seed)
    members: list[GroupMember] = []
    for task in range(count):
        for repeat in range(5):
            ending = (
                draw.choice(["done", "done", "max_steps", "length", "failed", "slow"])
                if task and repeat > 1
                else "done"
            )
            if ending in ("failed", "slow"):
                treatment = Treatment.LEFT_OUT if ending == "failed" else Treatment.ZERO
                members.append(member_of_failure(str(task), repeat, ending, treatment))
                continue
            reward = float(draw.randint(0, 3)) if task else 1.0  # the first group has no variance
            rollout = row(*_turns(model, draw, noise), reward=reward, finish_reason=ending)
            members.append(member_of_row(rollout, str(task), rules or SequenceRules(), EndingRules()))
    return groups_of(members, scale=scale)


def _turns(model: Any, draw: random.Random, noise: float) -> list[Any]:
    turns: list[Any] = []
    history: list[int] = []
    for _ in range(draw.randint(1, 3)):
        prompt = history + [draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 6))]
        generated = [draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 8))]
        ids = torch.tensor([prompt + generated])
        with torch.no_grad():
            own = torch.log_softmax(model(input_ids=ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])[:, 0]
        recorded = [min(0.0, value + draw.uniform(-noise, noise)) for value in own[len(prompt) - 1 :].tolist()]
        turns.append({**turn(prompt, generated), "generation_log_probs": recorded})
        # Sometimes the next prompt does not continue this turn, so that the episode has several sequences.
        history = prompt + generated if draw.random() < 0.8 else prompt
    return turns
