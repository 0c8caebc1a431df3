"""The built-in model: a policy that plays Sokoban and needs no GPU. Like a real model, it sees only the conversation.

policy.py finds the board in the conversation and decides a turn, with configurable errors. `Faults` simulates failures
of an endpoint. Tools other than `step` are called with random arguments that match their schema.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models.base import ModelServer
from rollyard.responses_api_models.builtin_model.policy import (
    PolicySettings,
    PolicyTurn,
    RandomDraws,
    SokobanPolicy,
    read_conversation,
)
from rollyard.responses_api_models.conversion import refuse_logprobs, refuse_state
from rollyard.services.http.request import Handler, RawRequest, RawResponse
from rollyard.services.server.app import Context
from rollyard.services.server.settings import ServerSettings

_TRUNCATED = b'{"id": "resp_torn", "object": "response", "status": "completed", "output": [{"type": "mess'
_ERRORS = {
    "error": (500, "The server had an error while processing your request.", "server_error", None),
    "rate_limit": (429, "Rate limit reached for requests.", "requests", "rate_limit_exceeded"),
    "hang": (504, "The engine did not respond in time.", "server_error", "timeout"),
}
_FAULTS = (*_ERRORS, "garbage", "slow")


class FaultSettings(BaseModel):
    """Fault rates as fractions of all requests, which must not add up to more than 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    error_rate: float = Field(default=0.0, ge=0, le=1)
    """Fraction of requests that get status 500."""
    rate_limit_rate: float = Field(default=0.0, ge=0, le=1)
    """Fraction of requests that get status 429."""
    hang_rate: float = Field(default=0.0, ge=0, le=1)
    """Fraction of requests that get no response for `hang_s`, or until the caller disconnects."""
    garbage_rate: float = Field(default=0.0, ge=0, le=1)
    """Fraction of requests that get truncated JSON with status 200."""
    slow_rate: float = Field(default=0.0, ge=0, le=1)
    """Fraction of requests that get the regular response `slow_s` seconds late."""
    slow_s: float = Field(default=2.0, ge=0)
    """Delay of a slow response, in seconds."""
    hang_s: float = Field(default=600.0, ge=0)
    """Duration of a hang, in seconds."""
    retry_after_s: int = Field(default=1, ge=0)
    """Value of `Retry-After`."""

    @model_validator(mode="after")
    def _fit(self) -> FaultSettings:
        if (total := sum(self.rates.values())) > 1 + 1e-9:
            raise ValueError(f"the fault rates add up to {total:g}; expected at most 1")
        return self

    @property
    def rates(self) -> dict[str, float]:
        return {fault: getattr(self, f"{fault}_rate") for fault in _FAULTS}


class BuiltinModelSettings(PolicySettings):
    NOT_IDENTITY: ClassVar[frozenset[str]] = ServerSettings.NOT_IDENTITY | {
        *("latency_s", "jitter_s", "plans_kept", "faults")
    }

    model: str = "builtin"
    """Name in `GET /v1/models` and in every response; the request's `model` is ignored."""
    seed: int = 0
    """Seeds every random stream. Servers with the same seed return the same responses to the same seeded requests."""
    temperature: float = Field(default=1.0, ge=0)
    """Temperature for requests that do not set one; the default is the same as OpenAI's."""
    faults: FaultSettings = FaultSettings()
    """Injected failures; none by default."""
    latency_s: float = Field(default=0.0, ge=0)
    """Latency added to every response to simulate an engine."""
    jitter_s: float = Field(default=0.0, ge=0)
    """Maximum additional latency, uniformly distributed."""


class Faults:
    """Wraps handlers to inject the faults of a real endpoint as raw HTTP responses, and delays; if all rates and delays
    are 0, handlers are returned unwrapped.

    The random numbers depend on how many requests came before, so a retry of the same request can succeed.
    """

    def __init__(self, settings: BuiltinModelSettings) -> None:
        self._settings = settings
        self._faults = settings.faults
        self._requests = 0
        self.waits = bool(settings.latency_s or settings.jitter_s or self._faults.hang_rate or self._faults.slow_rate)

    def around(self, handler: Handler) -> Handler:
        if not self.waits and not any(self._faults.rates.values()):
            return handler

        @functools.wraps(handler)
        async def faulty(call: RawRequest) -> bytes | RawResponse:
            draws = RandomDraws(b"%d" % self._requests, f"faults/{self._settings.seed}")
            self._requests += 1
            drawn, fault = draws.unit(), ""
            for name, rate in self._faults.rates.items():
                if drawn < rate:
                    fault = name
                    break
                drawn -= rate
            await asyncio.sleep(self._settings.latency_s + self._settings.jitter_s * draws.unit())
            if fault in ("slow", "hang"):
                await asyncio.sleep(self._faults.slow_s if fault == "slow" else self._faults.hang_s)
            if fault in ("", "slow"):
                return await handler(call)
            if fault == "garbage":
                return RawResponse(_TRUNCATED)
            status, message, kind, code = _ERRORS[fault]
            error = {"message": message, "type": kind, "param": None, "code": code}
            retry = ((b"retry-after", b"%d" % self._faults.retry_after_s),) if fault == "rate_limit" else ()
            return RawResponse(orjson.dumps({"error": error}), status, retry)

        return faulty


class BuiltinModel(ModelServer[BuiltinModelSettings]):
    def __init__(self, settings: BuiltinModelSettings, context: Context) -> None:
        # Created before the base class registers its routes, because `route` wraps their handlers.
        self._faults = Faults(settings)
        super().__init__(settings, context)
        self._policy = SokobanPolicy(settings)

    def route(self, path: str, handler: Handler, *, cancellable: bool = False) -> None:
        """Register a route behind the fault injection.

        Detecting disconnects costs 15 us per request, so it is enabled only if requests can wait.
        """
        super().route(path, self._faults.around(handler), cancellable=cancellable and self._faults.waits)

    def models(self) -> list[str]:
        return [self.settings.model]

    async def count_tokens(self, request: Json, call: RawRequest) -> int:
        return input_tokens(len(read_conversation(request).text))

    async def responses(self, request: Json, call: RawRequest) -> Json:
        refuse_state(request)
        refuse_logprobs(request, self.name)
        temperature = temperature_of(request, self.settings.temperature)
        seed = seed_of(request)
        conversation = read_conversation(request)
        draws, tag = self._draws(conversation.text, seed, temperature)
        steps = can_step(request)
        if not steps and (tools := callable_tools(request)):
            turn = random_turn(request, tools, done=conversation.done, draws=draws)
        else:
            turn = self._policy.turn(conversation, steps, temperature, draws)
        return response(request, turn, self.settings.model, temperature, tag, len(conversation.text))

    def _draws(self, text: bytes, seed: object, temperature: float) -> tuple[RandomDraws, str]:
        """Return the random numbers and the id of this turn.

        A seed determines both. Without a seed the id is random, and so are the numbers unless the temperature is 0.
        """
        if seed is not None:
            draws = RandomDraws(text, f"seed/{self.settings.seed}/{seed}")
            return draws, draws.tag
        fresh = secrets.token_hex(16)
        return RandomDraws(text, f"fresh/{self.settings.seed}/{fresh if temperature else ''}"), fresh


TURNS_PER_ANSWER = 8
"""On average, one in this many turns is a text answer instead of a tool call."""
RANGE = 100
"""Size of the range for numbers whose schema has no upper bound; the range starts at 0 if there is no lower bound
either."""
WORDS = ("yes", "no", "a", "b", "red", "blue", "one", "two", "left", "right")
MAX_DEPTH = 4
"""Nesting depth beyond which objects and lists get only required values, because a schema can refer to itself."""


def callable_tools(request: Json) -> list[Json]:
    choice = request.get("tool_choice")
    named = choice.get("name") if isinstance(choice, dict) else None
    if choice == "none":
        return []
    tools = [tool for tool in request.get("tools") or () if tool.get("type") == "function" and tool.get("name")]
    return [tool for tool in tools if named in (None, tool["name"])]


def random_turn(request: Json, tools: Sequence[Json], *, done: bool, draws: RandomDraws) -> PolicyTurn:
    """Return a call to one of `tools`, or occasionally a text answer; always one after the environment is `done`."""
    must_call = request.get("tool_choice") not in (None, "auto")
    if done or (not must_call and draws.below(TURNS_PER_ANSWER) == 0):
        return PolicyTurn(None, f"The answer is {draws.below(RANGE)}.")
    tool = tools[draws.below(len(tools))]
    schema = tool.get("parameters") or {}
    arguments = _object(schema, schema.get("$defs") or {}, draws, 0)
    return PolicyTurn(orjson.dumps(arguments).decode(), name=tool["name"])


def _value(schema: Any, defs: Mapping[str, Any], draws: RandomDraws, depth: int) -> Any:
    if not isinstance(schema, dict):
        return None
    if isinstance(reference := schema.get("$ref"), str):
        return None if depth > 8 * MAX_DEPTH else _value(defs.get(reference.rpartition("/")[2]), defs, draws, depth + 1)
    for key in ("enum", "examples"):
        if isinstance(listed := schema.get(key), list) and listed:
            return listed[draws.below(len(listed))]
    if "const" in schema:
        return schema["const"]
    if branches := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        return _value(branches[draws.below(len(branches))], defs, draws, depth)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[draws.below(len(kind))] if isinstance(kind, list) and kind else kind
    if kind in ("integer", "number"):
        return _number(schema, draws, whole=kind == "integer")
    if kind == "boolean":
        return draws.below(2) == 1
    if kind == "array":
        least = int(schema.get("minItems", 0))
        most = least if depth > MAX_DEPTH else min(int(schema.get("maxItems", least + 3)), least + 3)
        count = least + draws.below(most - least + 1)
        return [_value(schema.get("items"), defs, draws, depth + 1) for _ in range(count)]
    if kind == "object":
        return _object(schema, defs, draws, depth + 1)
    return None if kind == "null" else WORDS[draws.below(len(WORDS))]


def _object(schema: Mapping[str, Any], defs: Mapping[str, Any], draws: RandomDraws, depth: int) -> Json:
    properties = schema.get("properties") or {}
    required = schema.get("required") or ()
    chosen = [name for name in properties if name in required or (depth <= MAX_DEPTH and draws.below(2))]
    return {name: _value(properties[name], defs, draws, depth) for name in chosen}


def _number(schema: Mapping[str, Any], draws: RandomDraws, *, whole: bool) -> int | float:
    least = schema.get("minimum", schema.get("exclusiveMinimum", 0))
    most = schema.get("maximum", schema.get("exclusiveMaximum", least + RANGE))
    if not whole:
        return float(least + (0.05 + 0.9 * draws.unit()) * (most - least))  # never a bound, which may be excluded
    first = int(least) + ("exclusiveMinimum" in schema)
    last = int(most) - ("maximum" not in schema)
    return first + draws.below(max(1, last - first + 1))


BYTES_PER_TOKEN = 4
ECHOED = ("instructions", "max_output_tokens", "metadata", "reasoning", "text", "top_p", "user")


def response(request: Json, turn: PolicyTurn, model: str, temperature: float, tag: str, input_bytes: int) -> Json:
    if turn.arguments is None:
        text = turn.text
        part: Json = {"type": "output_text", "text": text, "annotations": [], "logprobs": None}
        item: Json = {"id": f"msg_{tag}", "type": "message", "role": "assistant", "content": [part]}
    else:
        text = turn.arguments
        item = {"id": f"fc_{tag}", "type": "function_call", "call_id": f"call_{tag}", "name": turn.name}
        item["arguments"] = text
    item["status"] = "completed"
    prompt_tokens = input_tokens(input_bytes)
    output_tokens = len(text) // BYTES_PER_TOKEN + 1
    get = request.get
    no_schema = {"parameters": None, "strict": None}  # optional in a request
    whole: Json = {
        "id": f"resp_{tag}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [item],
        "parallel_tool_calls": get("parallel_tool_calls") is not False,
        "temperature": temperature,
        "tool_choice": get("tool_choice") or "auto",
        "tools": [
            tool if tool.get("type") != "function" or {"strict", "parameters"} <= tool.keys() else {**no_schema, **tool}
            for tool in get("tools") or ()
        ],
        "usage": {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt_tokens + output_tokens,
        },
    }
    return {**whole, **{name: get(name) for name in ECHOED}}


def input_tokens(size: int) -> int:
    return size // BYTES_PER_TOKEN + 1


def can_step(request: Json) -> bool:
    if request.get("tool_choice") == "none":
        return False
    return any(tool.get("name") == "step" for tool in request.get("tools") or ())


def seed_of(request: Json) -> object:
    """Return the request's `seed`, or the one in NeMo Gym's `metadata.extra_body`; None if absent."""
    seed = request.get("seed")
    if seed is not None:
        return seed
    extra = (request.get("metadata") or {}).get("extra_body")
    if extra is None:
        return None
    try:
        return (orjson.loads(extra) if isinstance(extra, str) else extra).get("seed")
    except (ValueError, AttributeError) as error:
        detail = f'metadata.extra_body is {extra!r}; expected a JSON object in a string, such as {{"seed": 3}}'
        raise Failure(FailureKind.BAD_REQUEST, detail) from error


def temperature_of(request: Json, default: float) -> float:
    """Return the request's temperature. Raises Failure bad_request if it is not a number >= 0."""
    temperature = request.get("temperature")
    if temperature is None:
        return default
    if not isinstance(temperature, int | float) or not temperature >= 0:
        raise Failure(FailureKind.BAD_REQUEST, f"temperature is {temperature!r}; expected a number >= 0")
    return float(temperature)


server = BuiltinModel
