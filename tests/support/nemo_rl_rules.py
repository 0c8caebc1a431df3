"""What NeMo RL and verl's recipe do with the result of a rollout, as assertions, without torch.

Read in NeMo RL's nemo_rl/environments/nemo_gym.py and in verl-recipe's nemo_gym/agent_loop.py, mid 2026.
"""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass

from rollyard.records.types import Json


@dataclass
class Message:
    role: str
    token_ids: list[int]
    log_probs: list[float] | None = None


def message_log(row: Json, result: Json) -> list[Message]:
    """Return what NeMo RL trains on. Raises AssertionError if it would end the step."""
    assert type(result) is dict
    assert isinstance(result["responses_create_params"].get("input", []), list | str)
    assert isinstance(row["_rowidx"], int)
    assert isinstance(row["agent_ref"]["name"], str)
    log: list[Message] = []
    seen: list[int] = []
    for item in result["response"]["output"]:
        assert type(item) is dict  # both pop keys from it
        if not item.get("generation_token_ids"):
            continue
        prompt, generated = item["prompt_token_ids"], item["generation_token_ids"]
        log_probs = item["generation_log_probs"]
        assert prompt[: len(seen)] == seen, "non-contiguous messages"
        assert prompt[len(seen) :], "an empty tensor of new prompt tokens has the wrong dtype"
        assert len(generated) == len(log_probs)
        assert all(type(number) is int for number in [*prompt, *generated])
        assert not any(math.isnan(value) for value in log_probs), "log-probabilities contain NaN"
        log += [Message("user", prompt[len(seen) :]), Message("assistant", generated, log_probs)]
        seen = [*prompt, *generated]
    assert log, "a result with no generation data"
    _check_reward(result)
    pickle.dumps(result)  # it is sent from a Ray actor
    return log


def loss_multiplier(result: Json) -> float:
    """Return 0 for a result that NeMo RL masks."""
    return 0.0 if (result.get("instance_config") or {}).get("mask_sample") else 1.0


def verl_message_log(result: Json) -> list[Message]:
    """Return what verl's recipe trains on. Unlike NeMo RL, it also reads items with empty lists."""
    log: list[Message] = []
    seen: list[int] = []
    for item in result["response"]["output"]:
        if "generation_token_ids" not in item:
            continue
        assert item["prompt_token_ids"][: len(seen)] == seen
        log.append(Message("user", item["prompt_token_ids"][len(seen) :]))
        log.append(Message("assistant", item["generation_token_ids"], item["generation_log_probs"]))
        seen = [*item["prompt_token_ids"], *item["generation_token_ids"]]
    assert log
    assert isinstance(result["reward"], float)
    return log


def _check_reward(result: Json) -> None:
    reward = float(result["reward"])
    assert math.isfinite(reward)
    if components := result.get("reward_components"):
        total = sum(float(value) for value in components.values())
        assert math.isclose(reward, total, rel_tol=1e-5, abs_tol=1e-6)
