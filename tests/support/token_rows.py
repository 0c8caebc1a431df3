"""Rollouts with recorded tokens: texts, log-probabilities, alternatives and policy versions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rollyard.records.types import Json


def call_item(
    texts: Sequence[str],
    log_probs: Sequence[float],
    *,
    prompt: Sequence[int] = (1, 2),
    version: str | None = None,
    with_texts: bool = True,
    **trace: Any,
) -> Json:
    """The message that ends a model call which generated these tokens. Ids follow from texts."""
    sampling = {"temperature": 1.0, "logprobs_mode": "processed_logprobs"}
    if version is not None:
        sampling["policy_version"] = version
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "".join(texts)}],
        "prompt_token_ids": list(prompt),
        "generation_token_ids": [token_id(text) for text in texts],
        "generation_log_probs": list(log_probs),
        "token_trace": {"segment": 0, "sampling": sampling, **({"texts": list(texts)} if with_texts else {}), **trace},
    }


def logprobs_item(tokens: Sequence[tuple[str, float, Sequence[tuple[str, float]]]]) -> Json:
    """A message with `logprobs`: the text, the log-probability and the alternatives of each token."""
    entries = [
        {"token": text, "logprob": value, "top_logprobs": [{"token": one, "logprob": other} for one, other in tops]}
        for text, value, tops in tokens
    ]
    text = "".join(one for one, _, _ in tokens)
    part = {"type": "output_text", "text": text, "logprobs": entries}
    return {"type": "message", "role": "assistant", "content": [part]}


def token_id(text: str) -> int:
    return 100 + sum(number * ord(letter) for number, letter in enumerate(text, 1)) % 50_000


def token_row(task: int, repeat: int, calls: Sequence[Json], reward: float = 1.0, **more: Any) -> Json:
    """A rollout with these model calls; tool results follow all but the last."""
    output: list[Json] = []
    for number, call in enumerate(calls):
        output.append(call)
        if number + 1 < len(calls):
            output.append({"type": "function_call_output", "call_id": f"c{number}", "output": "ok"})
    return {
        "responses_create_params": {"input": f"play {task}"},
        "response": {"output": output},
        "reward": reward,
        "_ng_task_index": task,
        "_ng_rollout_index": repeat,
        **more,
    }


def alternatives(chosen: str, share: float) -> tuple[str, float, list[tuple[str, float]]]:
    """A token of this probability, beside one other alternative that has the rest."""
    return chosen, math.log(share), [(chosen, math.log(share)), (" other", math.log(1 - share))]
