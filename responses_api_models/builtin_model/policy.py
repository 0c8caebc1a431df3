"""Decides one turn of the policy. At temperature 0 it follows the plan; at higher temperatures some decisions go wrong.

Its output uses the formats that environments parse: a call to `step` with a list of moves, `<action>Up</action>` if
there is no tool, and `<answer>Up || Left</answer>` at the end.

A board is drawn with `#` wall, `_` floor, `O` target, `X` box, `√` box on target, `P` player, `S` player on target.
Only the last board of the conversation is parsed; earlier tool outputs are only hashed.
"""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollyard.records.types import Json
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
