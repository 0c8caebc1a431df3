"""Makes rows as `POST /run` returns them, with recorded tokens."""

from __future__ import annotations

from typing import Any

from rollyard.records.types import Json


def turn(prompt: list[int], generated: list[int], **sampling: Any) -> Json:
    """The last item of a model call. The log-probability of token t is -t/10."""
    return {
        "type": "message",
        "role": "assistant",
        "content": "",
        "prompt_token_ids": prompt,
        "generation_token_ids": generated,
        "generation_log_probs": [-token / 10 for token in generated],
        "token_trace": {
            "segment": 0,
            "sampling": {"temperature": 1.0, "logprobs_mode": "processed_logprobs", "policy_version": "v1", **sampling},
        },
    }


def row(*turns: Json, reward: float = 1.0, **more: Any) -> Json:
    items: list[Json] = []
    for item in turns:
        items += [item, {"type": "function_call_output", "call_id": "c", "output": "the wall"}]
    return {"reward": reward, "finish_reason": "done", "response": {"output": items}, **more}
