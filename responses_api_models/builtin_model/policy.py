"""Player: one turn of the policy. At temperature 0 it plays the plan; above, some decisions slip, as a model's do.

Words stay in the shapes that worlds read: a call of `step` with a list of moves, `<action>Up</action>` where there is
no tool, and `<answer>Up || Left</answer>` at the end.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import NamedTuple

import orjson
from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollyard.responses_api_models.builtin_model.board_parser import BLANKS_READ, Conversation
from rollyard.responses_api_models.builtin_model.planner import MOVES, plan
from rollyard.responses_api_models.builtin_model.random_draws import RandomDraws

CANONICAL = {name.lower(): name for name in MOVES} | {str(index): name for index, name in enumerate(MOVES, 1)}
MUMBLED_ARGUMENTS = ('{"actions":["Upward"]}', '{"actions":["Jump"]}', '{"actions":"go on"}', '{"actions":["Up", "Le')
MUMBLED_WORDS = ("I would push the box.", "<action>Jump</action>", "<action></action>", "Let me think again.")
BURST = 3
"""The most moves in a call that is made at random."""


class ErrorRates(BaseModel):
    """How often a decision goes wrong, as chances at temperature 1; at temperature t their sum is 1 - (1 - sum)^t."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stray: float = Field(default=0.35, ge=0, lt=1)
    """Moves at random; before the first look that is acting blind."""
    give_up: float = Field(default=0.07, ge=0, lt=1)
    """Answers although nothing is solved; at the first turn that is an episode without any action."""
    mumble: float = Field(default=0.08, ge=0, lt=1)
    """Calls with a move nobody knows, or with arguments that are no JSON."""
    resign: float = Field(default=0.1, ge=0, le=1)
    """Chance a turn, at any temperature above 0, to give up a board without a plan; else it wanders."""

    @model_validator(mode="after")
    def _leave_room(self) -> ErrorRates:
        if self.total >= 1:
            raise ValueError(f"stray, give_up and mumble add up to {self.total:g}; less than 1 is expected")
        return self

    @property
    def total(self) -> float:
        """Chance of any slip at temperature 1."""
        return self.stray + self.give_up + self.mumble


class Turn(NamedTuple):
    """What the policy does: call `step` with these arguments, or else say something."""

    arguments: str | None
    text: str = ""


class SokobanPolicy:
    """Decides turns. Its only state is a bounded memory of plans, which changes no answer."""

    def __init__(
        self,
        slips: ErrorRates,
        *,
        moves_per_call: int,
        moves_spread: int,
        calls_planned: int,
        search_limit: int,
        plans_kept: int,
    ) -> None:
        self._slips = slips
        self._moves_per_call = moves_per_call
        self._moves_spread = moves_spread
        self._calls_planned = calls_planned
        self._plan = lru_cache(plans_kept)(partial(plan, limit=search_limit))

    def turn(self, talk: Conversation, can_step: bool, temperature: float, draws: RandomDraws) -> Turn:
        """The next turn in `talk`."""
        if can_step:
            return self._act(talk, temperature, draws)
        if talk.board is not None:
            return Turn(None, self._speak(talk.board, temperature, draws))
        return Turn(None, f"The answer is {draws.below(100)}.")

    def _act(self, talk: Conversation, temperature: float, draws: RandomDraws) -> Turn:
        if talk.done:
            return _answer(talk)
        slip = self._slip(temperature, draws)
        if slip == "give_up":
            return _answer(talk)
        if slip == "mumble":
            return Turn(MUMBLED_ARGUMENTS[draws.below(len(MUMBLED_ARGUMENTS))])
        if slip == "stray":
            return _wander(draws)
        if talk.blanks == BLANKS_READ:
            return _answer(talk)
        if talk.board is None or talk.blanks:
            return _step()
        moves = self._plan(talk.board)
        if moves is None:
            resigns = temperature == 0 or draws.unit() < self._slips.resign
            return _answer(talk) if resigns else _wander(draws)
        return _step(*moves[: self._size(len(moves), len(talk.calls), temperature, draws)])

    def _size(self, moves: int, calls_made: int, temperature: float, draws: RandomDraws) -> int:
        """How many moves this call carries: few, but enough to be done within the planned number of calls."""
        calls_left = max(1, self._calls_planned - calls_made)
        size = max(self._moves_per_call, -(-moves // calls_left))
        return size + draws.below(self._moves_spread + 1) if temperature > 0 else size

    def _speak(self, board: str, temperature: float, draws: RandomDraws) -> str:
        slip = self._slip(temperature, draws)
        if slip == "mumble" or slip == "give_up":
            return MUMBLED_WORDS[draws.below(len(MUMBLED_WORDS))]
        moves = None if slip else self._plan(board)
        if moves == ():
            return "Every box is on its target."
        return f"<action>{moves[0] if moves else MOVES[draws.below(len(MOVES))]}</action>"

    def _slip(self, temperature: float, draws: RandomDraws) -> str:
        """What goes wrong with this decision; empty when nothing does."""
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


def _step(*moves: str) -> Turn:
    return Turn(orjson.dumps({"actions": moves}).decode())


def _wander(draws: RandomDraws) -> Turn:
    return _step(*(MOVES[draws.below(len(MOVES))] for _ in range(1 + draws.below(BURST))))


def _answer(talk: Conversation) -> Turn:
    return Turn(None, f"<answer>{' || '.join(_moves_made(talk.calls))}</answer>")


def _moves_made(calls: list[str]) -> list[str]:
    """The moves of earlier calls, those that a world can have understood."""
    made: list[str] = []
    for arguments in calls:
        try:
            actions = orjson.loads(arguments)["actions"]
        except (ValueError, TypeError, KeyError):
            continue
        if isinstance(actions, list):
            made += [CANONICAL[name] for action in actions if (name := str(action).strip().lower()) in CANONICAL]
    return made
