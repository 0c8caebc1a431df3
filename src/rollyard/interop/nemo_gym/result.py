"""Turns a rollout into a result that the post-processing of NeMo RL and of verl's recipe accepts. A result that breaks
one of their rules for the recorded tokens would end the training step:

1. The prompt of each trainable item begins with the token ids of all earlier trainable items.
2. Every generated token has a finite log-probability.
"""

from __future__ import annotations

import math
from typing import Any

from rollyard.records.errors import Failure, FailureKind, RunError
from rollyard.records.rewards import MASKED, mask_of
from rollyard.records.types import TOKEN_FIELDS, Json
from rollyard.services.responses.policy_logprobs import are_ids, invalid_numbers
from rollyard.training.groups import EndingRules, Treatment

UNSUMMED = "unsummed_reward_components"
"""Key of reward components whose sum is not the reward. NeMo RL ends the step if `reward_components` are such."""


def to_result(row: Json, answer: Json, rules: EndingRules, agent: str) -> Json:
    """Return the answer of `/run` with `instance_config.mask_sample`, and without what a trainer would reject.

    Raises Failure malformed_answer if there is no response, and RunError if the model server records no token ids.
    """
    response = answer.get("response")
    output = response.get("output") if isinstance(response, dict) else None
    if not isinstance(response, dict) or not isinstance(output, list) or not all(isinstance(o, dict) for o in output):
        detail = "/run returned no response with output items, so there is nothing to train on"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=agent)
    if output and not any("generation_token_ids" in item for item in output):
        raise RunError(
            f"the rollout of {agent} has no token ids: set return_token_id_information: true on its model server, as "
            "responses_api_models/vllm_model/configs/vllm_model_for_training.yaml does"
        )
    reason, treatment = rules.of_row(answer)
    masked = "" if treatment is Treatment.PLAYED else f"the episode ended with {reason}"
    if mask := mask_of(answer):
        masked = "the agent or environment set mask_sample" if mask == MASKED else f"the rollout failed ({mask})"
    violation = remove_after_violation(output)
    masked = masked or violation
    if not any(map(is_trainable, output)):
        masked = masked or "the model generated no tokens"
        output.append(placeholder())
    result = {**_with_summed_components(answer), "agent_ref": row["agent_ref"]}
    result.setdefault("responses_create_params", row.get("responses_create_params", {}))
    return _masked(result, masked)


def failed_result(row: Json, failure: Failure) -> Json:
    """Return the masked result of a rollout that failed permanently. Its reward has no meaning."""
    response = {"id": "failed", "object": "response", "output": [placeholder()], "status": "failed", "error": None}
    result = {**row, "response": response, "reward": 0.0, "failure_kind": str(failure.kind)}
    return _masked(result, f"{failure.kind} at {failure.problem.server or '?'}: {failure.problem.detail}")


def _masked(result: Json, reason: str) -> Json:
    given = result.get("instance_config")
    config = {**(given if isinstance(given, dict) else {}), "mask_sample": bool(reason)}
    if reason:
        config["mask_reason"] = reason
    return {**result, "instance_config": config, "mask_sample": bool(reason)}


def _with_summed_components(answer: Json) -> Json:
    parts: Any = answer.get("reward_components")
    is_sum = (
        isinstance(parts, dict)
        and all(isinstance(one, int | float) for one in parts.values())
        and math.isclose(sum(parts.values()), answer["reward"], rel_tol=1e-5, abs_tol=1e-6)
    )
    if parts is None or is_sum:
        return answer
    return {**{name: value for name, value in answer.items() if name != "reward_components"}, UNSUMMED: parts}


PLACEHOLDER_TOKEN = 0
"""Every vocabulary has it. It has no loss, because the result is masked."""


def is_trainable(item: Json) -> bool:
    """Return whether an output item holds the tokens of a model call."""
    return bool(item.get("generation_token_ids"))


def remove_after_violation(output: list[Json]) -> str:
    """Remove the tokens of the first item that breaks a rule and of all later items. Return the rule, '' if none."""
    seen: list[int] = []
    broken = ""
    for number, item in enumerate(output):
        if not is_trainable(item):
            continue
        broken = broken or _violation(item, seen, number)
        if broken:
            for name in TOKEN_FIELDS:
                item.pop(name, None)
        else:
            seen = [*item["prompt_token_ids"], *item["generation_token_ids"]]
    return broken


def placeholder() -> Json:
    """Return an output item with one token, for a result that has none."""
    return {
        "id": "placeholder",
        "type": "message",
        "role": "assistant",
        "status": "incomplete",
        "content": [{"type": "output_text", "text": "", "annotations": []}],
        "prompt_token_ids": [PLACEHOLDER_TOKEN],
        "generation_token_ids": [PLACEHOLDER_TOKEN],
        "generation_log_probs": [0.0],
    }


def _violation(item: Json, seen: list[int], number: int) -> str:
    prompt: Any
    prompt, generated, log_probs = (item.get(name) for name in TOKEN_FIELDS[:3])
    where = f"output item {number}"
    if not are_ids(prompt):
        return f"{where} has no prompt_token_ids"
    if error := invalid_numbers(generated, log_probs):
        return f"{where} {error}"
    if prompt[: len(seen)] != seen:
        return f"the prompt of {where} does not begin with the {len(seen)} tokens of the earlier turns"
    return ""
