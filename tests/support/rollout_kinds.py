"""Rollout rows of every kind that there is, for what writes or reads them in another format."""

from __future__ import annotations

import base64
from typing import Any

from rollyard.records.types import Json
from tests.support.rollout_files import row as nemo_gym_row

PNG = "data:image/png;base64," + base64.b64encode(b"\x89PNG pixels").decode()
USER: Json = {"role": "user", "content": "Add 1 and 2."}


def answer(text: str, **more: Any) -> Json:
    content: list[Json] = [{"type": "output_text", "text": text, "annotations": [], "logprobs": None}]
    return {"id": "msg_1", "type": "message", "role": "assistant", "content": content, "status": "completed", **more}


def thought(text: str) -> Json:
    return {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}


def call(call_id: str, arguments: str = '{"x":1}', **more: Any) -> Json:
    return {"type": "function_call", "call_id": call_id, "name": "add", "arguments": arguments, **more}


def result(call_id: str, output: Any = "3") -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def tokens(*ids: int) -> Json:
    probs = [-0.5 * each for each in range(len(ids))]
    trace = {"segment": 0, "sampling": {"temperature": 0.8}}
    names = {"prompt_token_ids": [1, 2], "generation_token_ids": list(ids), "generation_log_probs": probs}
    return {**names, "token_trace": trace}


def rollout(*output: Json, given: Any = None, **more: Any) -> Json:
    params = {"input": [USER] if given is None else given, "temperature": 0.8}
    usage = {"input_tokens": 20, "output_tokens": 5, "total_tokens": 25, "input_tokens_details": {"cached_tokens": 4}}
    response = {"id": "resp_1", "model": "tiny", "error": None, "output": list(output), "usage": usage}
    keys = {"_ng_task_index": 3, "_ng_rollout_index": 1, "agent_ref": {"name": "simple_agent"}}
    return {"responses_create_params": params, "response": response, "reward": 1.0, **keys, **more}


KINDS: dict[str, Json] = {
    "text": rollout(answer("3")),
    "as NeMo Gym writes it": nemo_gym_row(0, 0, 1.0),
    "reasoning": rollout(thought("1 + 2 is 3"), answer("3")),
    "two reasonings": rollout(thought("1"), thought("2"), answer("3")),
    "a reasoning that is not revealed": rollout(
        {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAA"}, call("a"), result("a")
    ),
    "parts of a prompt": rollout(given=[{"role": "user", "content": [{"type": "input_text", "text": "Add."}]}]),
    "parallel calls": rollout(call("a"), call("b"), result("b"), result("a"), answer("3")),
    "everything in a turn": rollout(thought("so"), answer("I add."), call("a"), result("a"), answer("3")),
    "a call before the text": rollout(call("a"), answer("I add."), result("a")),
    "an invalid call": rollout(call("a", "{x"), result("a", "expected JSON"), answer("3")),
    "arguments that are a list": rollout(call("a", "[1]"), result("a")),
    "no JSON number": rollout(call("a", '{"x":NaN}'), result("a")),
    "a number beyond those of JSON": rollout(call("a", '{"x":1e400}'), result("a")),
    "a result without its call": rollout(result("z"), answer("3")),
    "a result of an earlier call": rollout(call("a"), USER, result("a"), answer("3")),
    "turns of an environment": rollout(answer("up"), {"role": "user", "content": "ouch"}, answer("down")),
    "an environment that begins": rollout({"role": "user", "content": "board"}, answer("up")),
    "images": rollout(answer("red"), given=[{"role": "user", "content": [{"type": "input_image", "image_url": PNG}]}]),
    "an image as a result": rollout(
        call("a"), result("a", [{"type": "input_image", "image_url": PNG, "detail": "low"}])
    ),
    "an image that ATIF cannot hold": rollout(
        given=[{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/bmp;base64,AAAA"}]}]
    ),
    "an image on the web": rollout(
        given=[{"role": "user", "content": [{"type": "input_image", "image_url": "https://example.org/cat"}]}]
    ),
    "a file": rollout(given=[{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]),
    "tokens": rollout(call("a", **tokens(5, 6)), result("a"), answer("3", **tokens(7, 8, 9))),
    "log-probabilities without ids": rollout(
        {
            **answer("3"),
            "content": [{"type": "output_text", "text": "3", "logprobs": [{"token": "3", "logprob": -0.5}]}],
        }
    ),
    "instructions and examples": {
        **rollout(answer("4")),
        "responses_create_params": {"instructions": "Be brief.", "input": [USER, answer("3"), USER], "tools": []},
    },
    "a prompt that is a string": rollout(answer("3"), given="Add."),
    "a masked rollout": rollout(mask_sample=True, failure_kind="judge_failed"),
    "no conversation": {"reward": 0.0, "_ng_task_index": 0, "_ng_rollout_index": 0},
    "other items": rollout({"type": "web_search_call", "id": "w", "action": {"query": "q"}}, answer("3")),
    "no objects": rollout(answer("3"), given=["text", 3, None]),
}
NO_UNICODE = rollout(answer("\ud800"))
"""Its text has a lone surrogate."""

PARTIAL = {"source": "agent", "stage": "tool", "turn": 1, "row": {"responses_create_params": {"input": [USER]}}}
FAILURE: Json = {
    "_ng_task_index": 3,
    "_ng_rollout_index": 1,
    "_ng_attempt_index": 2,
    "agent_ref": {"name": "simple_agent"},
    "failure_kind": "timeout",
    "server": "policy_model",
    "status": 504,
    "detail": "no answer in 60 s",
}
