"""First turns of a conversation with every kind of constraint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from rollyard.records.types import Json
from tests.external.vllm.constrained import ENDS
from tests.external.vllm.engine import Engine
from tests.support.stacks import EXAMPLES
from tests.support.weight_engine import trainer_server

CLOSE = 1e-4
"""Tolerance for float32 sums in another order; the largest observed difference is 1e-5."""
CALL_MARK, END = 1018, ENDS[0]
REQUEST: Json = orjson.loads(EXAMPLES.read_bytes().split(b"\n")[0])["responses_create_params"]
LOOSE = {**REQUEST, "tools": [{**REQUEST["tools"][0], "strict": False}]}
FREE = {"input": REQUEST["input"]}
_SCHEMA = {"type": "object", "properties": {"d": {"enum": ["up", "down"]}}, "required": ["d"]}
_FORMAT = {"type": "json_schema", "name": "move", "schema": {**_SCHEMA, "additionalProperties": False}}


@dataclass(frozen=True)
class Kind:
    params: Json
    names: tuple[str, ...] = ()
    by_grammar: bool = False
    """The grammar forbids tokens, in both logprobs modes."""


STRICT, SCHEMA, NOTHING = "the strict tool of the example rows", "a schema", "nothing"
KINDS = {
    STRICT: Kind({**REQUEST, "logit_bias": {str(CALL_MARK): 8.0}}, ("strict_tools", "logit_bias"), True),
    "a required call": Kind({**LOOSE, "tool_choice": "required"}, ("tool_choice",), True),
    "a named call": Kind({**LOOSE, "tool_choice": {"type": "function", "name": "step"}}, ("tool_choice",), True),
    SCHEMA: Kind({**FREE, "text": {"format": _FORMAT}}, ("response_format",), True),
    "any JSON": Kind({**FREE, "text": {"format": {"type": "json_object"}}}, ("response_format",), True),
    "a regex": Kind({**LOOSE, "structured_outputs": {"regex": "(ab|cd){4,9}"}}, ("structured_outputs",), True),
    "a stop token in a grammar": Kind(
        {**LOOSE, "tool_choice": "required", "stop_token_ids": [12, 220]}, ("tool_choice",), True
    ),
    "allowed tokens": Kind({**FREE, "allowed_token_ids": [*range(100, 400), END]}, ("allowed_token_ids",)),
    "a minimum number of tokens": Kind(
        {**FREE, "min_tokens": 20, "logit_bias": {str(END): 6.0}}, ("logit_bias", "min_tokens")
    ),
    "bad words": Kind({**FREE, "bad_words": ["the", "wall", "a"]}, ("bad_words",)),
    "top_p": Kind({**FREE, "top_p": 0.5}, ("top_p",)),
    "top_k": Kind({**FREE, "top_k": 5}, ("top_k",)),
    "min_p": Kind({**FREE, "min_p": 0.2}, ("min_p",)),
    "a repetition penalty": Kind({**FREE, "repetition_penalty": 1.3}, ("repetition_penalty",)),
    "a presence penalty": Kind({**FREE, "presence_penalty": 0.7}, ("presence_penalty",)),
    "a frequency penalty": Kind({**FREE, "frequency_penalty": 0.7}, ("frequency_penalty",)),
    NOTHING: Kind(LOOSE),
    "only end conditions": Kind({**FREE, "stop": ["wall"], "stop_token_ids": [220], "ignore_eos": True}),
}
UNCONSTRAINED = {
    "a stop string": Kind({**FREE, "stop": ["e"]}),
    "a stop string that stays": Kind({**FREE, "stop": ["e"], "include_stop_str_in_output": True}),
    "a template's argument": Kind({**FREE, "chat_template_kwargs": {"enable_thinking": False}}),
    "log-probabilities in words": Kind({**FREE, "include": ["message.output_text.logprobs"], "top_logprobs": 2}),
    "a limit that is vLLM's default": Kind({**FREE, "max_output_tokens": 16, "ignore_eos": True}),
    "no tool": Kind({**LOOSE, "tool_choice": "none"}),
    "no limit": Kind({**FREE, "max_output_tokens": None, "logit_bias": {"1017": 5.0}}, ("logit_bias",)),
}
"""Further kinds whose turns as ids must equal those of the chat endpoint."""


async def response_to(engine: Engine, params: Json, token_in: Any = None) -> Json:
    options = {} if token_in is None else {"token_in": token_in}
    async with trainer_server(
        base_url=[f"{engine.url}/v1"],
        api_key=engine.key,
        trainer_endpoints=False,
        return_token_id_information=True,
        **options,
    ) as policy_server:
        body = {"temperature": 0.8, "seed": 4, "max_output_tokens": 60, **params}
        status, answer = await policy_server.post("/v1/responses", body)
    assert status == 200, answer
    response: Json = answer
    return response


class FirstTurns:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[tuple[str, str], Json] = {}

    async def of(self, kind: str, token_in: str) -> Json:
        """`token_in`: as in the settings of the model server."""
        if (kind, token_in) not in self._known:
            params = {**KINDS, **UNCONSTRAINED}[kind].params
            self._known[kind, token_in] = await response_to(self._engine, params, token_in)
        return self._known[kind, token_in]
