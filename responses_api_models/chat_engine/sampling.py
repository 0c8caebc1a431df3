"""Records how a turn was sampled: its sampling parameters and all active constraints.

The generate backend takes them from the engine's render endpoint, including the grammar of strict or forced tool calls;
the other backends derive them from the request. services/responses/policy_endpoint.py has their effect on the record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, cast

import orjson

from rollyard.records.rollout_types import SamplingRecord
from rollyard.records.types import Json

NUMBERS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
PLAIN: Json = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""Values that are sent if a request does not set them. This keeps the record accurate: an engine's own defaults (the
model's generation_config) cannot be queried, and training requires the model's own distribution."""
_NEUTRAL: Json = {**PLAIN, "presence_penalty": 0.0, "frequency_penalty": 0.0}
ENDINGS = ("stop", "stop_token_ids", "ignore_eos", "include_stop_str_in_output", "repetition_detection")
"""Parameters that determine where a turn ends without changing the distribution over tokens. `min_tokens` is not
included, because it masks the tokens that would end the turn."""
GRAMMARS = (
    *("structured_outputs", "response_format", "structural_tag"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),  # older vLLM
    *("regex", "ebnf", "grammar", "json_schema"),  # SGLang and llama.cpp
)
_ELSEWHERE = (
    *("typical_p", "top_a", "top_n_sigma", "tfs_z", "epsilon_cutoff", "eta_cutoff", "no_repeat_ngram_size"),
    *("repeat_penalty", "repeat_last_n", "dry_multiplier", "xtc_probability", "dynatemp_range", "mirostat"),
    *("min_new_tokens", "custom_logit_processor", "samplers"),
)
"""Parameters of other inference servers, which vLLM ignores. They are recorded if the record is derived from the
request."""
_OTHERS = (
    *("allowed_token_ids", "logit_bias", "bad_words", "min_tokens", "thinking_token_budget", "watermarking"),
    *("trace_decode_token_ids",),
    *("vllm_xargs", "extra_args", "logits_processors"),
)
SHOWN_BYTES = 4000


def of_engine(params: Json, body: Json) -> SamplingRecord:
    """Return the record of a turn whose sampling parameters the engine derived from the chat request `body`."""
    record = params.get("structured_outputs") or {}
    grammar = {key: value for key, value in record.items() if value is not None and value is not False}
    names = [*_explicit(body), *_of_tools(body)] or ["structured_outputs"]
    return _record({**PLAIN, **params}, names if grammar else [], {"structured_outputs": grammar} if grammar else {})


def of_request(body: Json, *, tools_constrain: bool) -> SamplingRecord:
    """Return the record of a turn. `tools_constrain`: whether the engine enforces strict and forced tool calls."""
    encoded, by_tools = [*_explicit(body)], [*_of_tools(body)]
    values = {name: body[name] for name in encoded}
    if not tools_constrain:
        return {**_record(body, encoded, values), **({"not_enforced": by_tools} if by_tools else {})}
    if "tool_choice" in by_tools:
        values["tool_choice"] = body["tool_choice"]
    return _record(body, encoded + by_tools, values)


def _record(params: Json, grammars: list[str], values: Json) -> SamplingRecord:
    numbers = {key: params[key] for key in (*NUMBERS, "seed") if params.get(key) is not None}
    changed = [name for name in NUMBERS[1:] if name in numbers and numbers[name] != _NEUTRAL[name]]
    if "top_k" in changed and numbers["top_k"] == 0:
        changed.remove("top_k")
    recorded = {key: value for key, value in numbers.items() if key in PLAIN or key in changed or key == "seed"}
    given = [name for name in (*_OTHERS, *_ELSEWHERE) if params.get(name)]
    others = {name: value for name in given if (value := _without_transfers(params[name]))}
    constraints = {name: _shown(value) for name, value in {**values, **others}.items()}
    record: Json = {
        **recorded,
        **{key: params[key] for key in ENDINGS if params.get(key)},
        **({"constrained": names} if (names := [*grammars, *others, *changed]) else {}),
        **({"constraints": constraints} if constraints else {}),
    }
    return cast(SamplingRecord, record)


def _explicit(body: Json) -> Iterator[str]:
    """Yield the names of the grammar parameters that a chat request sets explicitly."""
    for name in GRAMMARS:
        value = body.get(name)
        is_text = name == "response_format" and isinstance(value, dict) and value.get("type") == "text"
        if value is not None and not is_text:
            yield name


def _of_tools(body: Json) -> Iterator[str]:
    """Yield the tool settings for which an engine's tool parser builds a grammar."""
    choice = body.get("tool_choice")
    if not body.get("tools") or choice == "none":
        return
    functions = (tool.get("function") for tool in body["tools"] if isinstance(tool, dict))
    if any(isinstance(function, dict) and function.get("strict") for function in functions):
        yield "strict_tools"
    if choice not in (None, "auto"):
        yield "tool_choice"


def _without_transfers(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: part for key, part in value.items() if key not in ("kv_transfer_params", "ec_transfer_params")}


def _shown(value: Any) -> Any:
    encoded = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    if len(encoded) <= SHOWN_BYTES:
        return value
    return {"bytes": len(encoded), "sha256": hashlib.sha256(encoded).hexdigest()}
