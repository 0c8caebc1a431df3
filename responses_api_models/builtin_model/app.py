"""The built-in model: a policy that plays Sokoban and needs no GPU. Like a real model, it sees only the conversation.

`SokobanPolicy` finds the board in the conversation and decides a turn, with configurable errors. `Faults` simulates
failures of an endpoint. Tools other than `step` are called with random arguments that match their schema.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import re
import secrets
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import orjson
from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models.base import ModelServer
from rollyard.responses_api_models.conversion import refuse_logprobs, refuse_state
from rollyard.services.http.request import Handler, RawRequest, RawResponse
from rollyard.services.server.app import Context
from rollyard.services.server.openapi import ANY, Shape
from rollyard.services.server.settings import ServerSettings

MOVES = ("Up", "Down", "Left", "Right")
CANONICAL = {name.lower(): name for name in MOVES} | {str(index): name for index, name in enumerate(MOVES, 1)}
INVALID_ARGUMENTS = ('{"actions":["Upward"]}', '{"actions":["Jump"]}', '{"actions":"go on"}', '{"actions":["Up", "Le')
INVALID_TEXTS = ("I would push the box.", "<action>Jump</action>", "<action></action>", "Let me think again.")
BURST = 3


class ErrorRates(BaseModel):
    """Error probabilities per decision at temperature 1; at temperature t their sum is 1 - (1 - sum)^t."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stray: float = Field(default=0.35, ge=0, lt=1)
    """Probability of random moves, possibly before the board was shown."""
    give_up: float = Field(default=0.07, ge=0, lt=1)
    """Probability of answering before the board is solved; in the first turn, this ends the episode without any
    actions."""
    mumble: float = Field(default=0.08, ge=0, lt=1)
    """Probability of calling the tool with an unknown move or with arguments that are not JSON."""
    resign: float = Field(default=0.1, ge=0, le=1)
    """Probability per turn, at temperatures above 0, of giving up on an unsolvable board instead of moving at
    random."""

    @model_validator(mode="after")
    def _check_total(self) -> ErrorRates:
        if self.total >= 1:
            raise ValueError(f"stray, give_up and mumble add up to {self.total:g}; expected less than 1")
        return self

    @property
    def total(self) -> float:
        return self.stray + self.give_up + self.mumble


class PolicyTurn(NamedTuple):
    """One decision: call the tool `name` with `arguments`, or answer with `text` if `arguments` is None."""

    arguments: str | None
    text: str = ""
    name: str = "step"


class PolicySettings(ServerSettings):
    slips: ErrorRates = ErrorRates()
    """Error rates at temperatures above 0."""
    moves_per_call: int = Field(default=1, ge=1)
    """Number of moves per `step` call; higher if the plan would otherwise need more than `calls_planned` calls."""
    moves_spread: int = Field(default=1, ge=0)
    """Maximum number of additional moves per call at temperatures above 0."""
    calls_planned: int = Field(default=9, ge=1)
    """Number of tool calls within which a plan should finish, including the first one, which makes no moves. The
    default is one less than the usual limit of an agent."""
    search_limit: int = Field(default=50_000, ge=1)
    """Number of positions to search before a board counts as unsolvable. Searching all of them takes about 20 ms; the
    rooms of public datasets take less than 1 ms."""
    plans_kept: int = Field(default=4096, ge=0)
    """Number of boards whose plans are cached."""


class SokobanPolicy:
    """Decides turns. Its only state is a bounded cache of plans, which does not affect the decisions."""

    def __init__(self, settings: PolicySettings) -> None:
        self._settings = settings
        self._slips = settings.slips
        self._plan = lru_cache(settings.plans_kept)(partial(plan, limit=settings.search_limit))

    def turn(
        self, conversation: ReadConversation, can_step: bool, temperature: float, draws: RandomDraws
    ) -> PolicyTurn:
        if can_step:
            return self._act(conversation, temperature, draws)
        if conversation.board is not None:
            return PolicyTurn(None, self._speak(conversation.board, temperature, draws))
        return PolicyTurn(None, f"The answer is {draws.below(100)}.")

    def _act(self, conversation: ReadConversation, temperature: float, draws: RandomDraws) -> PolicyTurn:
        if conversation.done or (slip := self._slip(temperature, draws)) == "give_up":
            return _answer(conversation)
        if slip == "mumble":
            return PolicyTurn(INVALID_ARGUMENTS[draws.below(len(INVALID_ARGUMENTS))])
        if slip == "stray":
            return _wander(draws)
        if conversation.blanks == MAX_BLANKS:
            return _answer(conversation)
        if conversation.board is None or conversation.blanks:
            return _step()
        moves = self._plan(conversation.board)
        if moves is None:
            resigns = temperature == 0 or draws.unit() < self._slips.resign
            return _answer(conversation) if resigns else _wander(draws)
        # Enough moves to finish the plan within the planned calls.
        calls_left = max(1, self._settings.calls_planned - len(conversation.calls))
        size = max(self._settings.moves_per_call, -(-len(moves) // calls_left))
        if temperature > 0:
            size += draws.below(self._settings.moves_spread + 1)
        return _step(*moves[:size])

    def _speak(self, board: str, temperature: float, draws: RandomDraws) -> str:
        if (slip := self._slip(temperature, draws)) in ("mumble", "give_up"):
            return INVALID_TEXTS[draws.below(len(INVALID_TEXTS))]
        moves = None if slip else self._plan(board)
        if moves == ():
            return "Every box is on its target."
        return f"<action>{moves[0] if moves else MOVES[draws.below(len(MOVES))]}</action>"

    def _slip(self, temperature: float, draws: RandomDraws) -> str:
        slips = self._slips
        if temperature <= 0 or not slips.total:
            return ""
        chance = 1 - (1 - slips.total) ** temperature
        drawn = draws.unit()
        if drawn >= chance:
            return ""
        drawn *= slips.total / chance
        if drawn < slips.stray:
            return "stray"
        return "give_up" if drawn < slips.stray + slips.give_up else "mumble"


def _step(*moves: str) -> PolicyTurn:
    return PolicyTurn(orjson.dumps({"actions": moves}).decode())


def _wander(draws: RandomDraws) -> PolicyTurn:
    return _step(*(MOVES[draws.below(len(MOVES))] for _ in range(1 + draws.below(BURST))))


def _answer(conversation: ReadConversation) -> PolicyTurn:
    return PolicyTurn(None, f"<answer>{' || '.join(_moves_made(conversation.calls))}</answer>")


def _moves_made(calls: list[str]) -> list[str]:
    made: list[str] = []
    for arguments in calls:
        try:
            actions = orjson.loads(arguments)["actions"]
        except (ValueError, TypeError, KeyError):
            continue
        if isinstance(actions, list):
            made += [CANONICAL[name] for action in actions if (name := str(action).strip().lower()) in CANONICAL]
    return made


Exits = list[tuple[int, int, int]]
"""Exits of a cell: the next cell, its box bit, and the bits that change if a box on it is pushed (0 if it cannot be
pushed)."""


def plan(board: str, limit: int = 50_000) -> tuple[str, ...] | None:
    """Return a shortest solution for `board`; None if searching `limit` positions finds no solution.

    The search is breadth-first over (player, boxes); each state is one integer.
    """
    # One string surrounded by walls.
    rows = board.split("\n")
    width = max(map(len, rows))
    stride = width + 1
    flat = "#" * stride + "#" + "#".join(row.ljust(width, "#") for row in rows) + "#" * (stride + 1)
    cells = [at for at, symbol in enumerate(flat) if symbol != "#"]
    number = {at: index for index, at in enumerate(cells)}
    shift = len(cells).bit_length()
    live = _live(flat, stride)
    exits = [_exits(at, stride, number, shift, live) for at in cells]
    state = astray = 0
    for index, at in enumerate(cells):
        symbol = flat[at]
        bit = 1 << (shift + index)
        if symbol in "X√":
            state |= bit
            if at not in live:
                return None
        elif symbol in "PS":
            state |= index
        if symbol not in "O√S":
            astray |= bit
    if not state & astray:
        return ()
    came_from = _search(state, astray, exits, (1 << shift) - 1, limit)
    if came_from is None:
        return None
    steps = {-stride: "Up", stride: "Down", -1: "Left", 1: "Right"}
    path = [cells[at & ((1 << shift) - 1)] for at in came_from]
    return tuple(steps[there - here] for here, there in pairwise(path))


def _search(start: int, astray: int, exits: list[Exits], player: int, limit: int) -> list[int] | None:
    came_from = {start: start}
    frontier = [start]
    while frontier and len(came_from) < limit:
        reached: list[int] = []
        for state in frontier:
            here = state & player
            boxes = state ^ here
            for cell, box, pushed in exits[here]:
                if not boxes & box:
                    following = boxes | cell
                    if following not in came_from:
                        came_from[following] = state
                        reached.append(following)
                elif pushed and not boxes & (pushed ^ box):
                    following = (boxes ^ pushed) | cell
                    if following not in came_from:
                        came_from[following] = state
                        if not following & astray:
                            path = [following]
                            while path[-1] != start:
                                path.append(came_from[path[-1]])
                            return path[::-1]
                        reached.append(following)
        frontier = reached
    return None


def _live(flat: str, stride: int) -> set[int]:
    """Return the cells from which a single box can be pushed to a target, found by pulling boxes from the targets."""
    todo = [at for at, symbol in enumerate(flat) if symbol in "O√S"]
    live = set(todo)
    while todo:
        at = todo.pop()
        for step in (-stride, stride, -1, 1):
            pulled = at + step
            if pulled not in live and flat[pulled] != "#" and flat[pulled + step] != "#":
                live.add(pulled)
                todo.append(pulled)
    return live


def _exits(at: int, stride: int, number: dict[int, int], shift: int, live: set[int]) -> Exits:
    exits = []
    for step in (-stride, stride, -1, 1):
        if (cell := number.get(at + step)) is not None:
            bit = 1 << (shift + cell)
            behind = at + 2 * step
            exits.append((cell, bit, bit | 1 << (shift + number[behind]) if behind in live else 0))
    return exits


ROWS = re.compile(r"(?:^[ \t]*[#_OX√PS](?: ?[#_OX√PS]){2,}[ \t]*\r?(?:\n|\Z)){3,}", re.MULTILINE)
MAX_BLANKS = 3
"""Maximum number of trailing outputs without a board that are counted; the policy treats larger numbers the same."""


@dataclass(slots=True)
class ReadConversation:
    text: bytes
    """The text of all items without their ids, so the same conversation always has the same text."""
    board: str | None = None
    done: bool = False
    """Whether the environment returned `done`, or every box is on a target."""
    blanks: int = 0
    calls: list[str] = field(default_factory=list)


def read_conversation(request: Json) -> ReadConversation:
    items = request.get("input")
    texts: list[str] = []
    calls: list[str] = []
    outputs: list[str] = []
    user_texts: list[str] = []
    for item in [{"role": "user", "content": items}] if isinstance(items, str) else items or ():
        if not isinstance(item, dict):
            continue
        kind = item.get("type")
        if kind == "function_call_output":
            text = _text(item.get("output"))
            outputs.append(text)
        elif kind == "function_call":
            text = _text(item.get("arguments"))
            calls.append(text)
        else:
            text = _text(item.get("content"))
            if item.get("role") == "user":
                user_texts.append(text)
        texts.append(text)
    texts.append(_text(request.get("instructions")))
    conversation = ReadConversation("\x1e".join(texts).encode("utf-8", "surrogatepass"), calls=calls)
    _find_last_board(conversation, outputs, user_texts)
    return conversation


def _find_last_board(conversation: ReadConversation, outputs: list[str], user_texts: list[str]) -> None:
    for output in reversed(outputs):
        shown, done = _observation(output)
        conversation.board = find_board(shown)
        conversation.done |= done
        if conversation.board or conversation.done or conversation.blanks == MAX_BLANKS:
            break
        conversation.blanks += 1
    else:
        for text in reversed(user_texts):
            if "#" in text and (board := find_board(text)):
                conversation.board = board
                break
    if conversation.board and "X" not in conversation.board:
        conversation.done = True


def _observation(output: str) -> tuple[str, bool]:
    if output[:1] not in ("{", '"'):
        return output, False
    try:
        value = orjson.loads(output)
    except ValueError:
        return output, False
    if isinstance(value, str):
        return value, False
    shown = value.get("observation")
    if not isinstance(shown, str):
        shown = next((text for text in value.values() if isinstance(text, str) and "#" in text), "")
    return shown, any(value.get(name) is True for name in ("done", "terminated", "truncated"))


def find_board(text: str) -> str | None:
    if "#" not in text:
        return None
    for rows in reversed(ROWS.findall(text)):
        board: str = "\n".join(row.replace(" ", "").replace("\t", "") for row in rows.splitlines())
        if board.count("P") + board.count("S") == 1 and "#" in board and ("X" in board or "√" in board):
            return board
    return None


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


BLOCK = struct.Struct("<16x6Q")
UNIT = 1.0 / (1 << 64)


class RandomDraws:
    """A stream of uniform random numbers that depends only on `material` and `key`."""

    __slots__ = ("_block", "_left", "tag")

    def __init__(self, material: bytes, key: str) -> None:
        name = key.encode()
        if len(name) > hashlib.blake2b.MAX_KEY_SIZE:
            name = hashlib.blake2b(name).digest()
        self._block = hashlib.blake2b(material, key=name).digest()
        self._left = list(BLOCK.unpack(self._block))
        self.tag = self._block[:16].hex()
        """32 hex digits for use in ids; no random numbers are derived from them."""

    def unit(self) -> float:
        if not self._left:
            self._block = hashlib.blake2b(self._block).digest()
            self._left = list(BLOCK.unpack(self._block))
        number: int = self._left.pop()
        return (number >> 11) * (UNIT * 2048)

    def below(self, limit: int) -> int:
        return int(self.unit() * limit)


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

    def route(self, path: str, handler: Handler, *, cancellable: bool = False, shape: Shape = ANY) -> None:
        """Register a route behind the fault injection.

        Detecting disconnects costs 15 us per request, so it is enabled only if requests can wait.
        """
        super().route(path, self._faults.around(handler), cancellable=cancellable and self._faults.waits, shape=shape)

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
