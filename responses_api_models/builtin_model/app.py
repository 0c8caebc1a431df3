"""The built-in model: a policy that needs no GPU. It reads the conversation as a model would and plays what it sees.

board.py    what the conversation shows          play.py    what to do about it, and what goes wrong
planner.py  the shortest solution of a board     chance.py  numbers fixed by seed and conversation
answer.py   a turn as a Response                 faults.py  failures of an endpoint, on purpose
"""

from __future__ import annotations

import secrets
from typing import ClassVar

from pydantic import Field

from rollyard.responses_api_models.base import ModelServer
from rollyard.responses_api_models.builtin_model import board_parser, response
from rollyard.responses_api_models.builtin_model.fault_injection import Faults, FaultSettings
from rollyard.responses_api_models.builtin_model.policy import ErrorRates, SokobanPolicy
from rollyard.responses_api_models.builtin_model.random_draws import RandomDraws
from rollyard.services.http.request import Handler, RawRequest
from rollyard.services.server.app import Context
from rollyard.services.server.settings import ServerSettings
from rollyard.services.types import Json


class BuiltinModelSettings(ServerSettings):
    """Settings of the built-in model."""

    NOT_IDENTITY: ClassVar[frozenset[str]] = ServerSettings.NOT_IDENTITY | {
        "latency_s",
        "jitter_s",
        "plans_kept",
        "faults",
    }

    model: str = "builtin"
    """Name in `GET /v1/models` and in every answer; a request's own `model` is not looked at."""
    seed: int = 0
    """Part of every random stream: two servers with equal seeds answer equal seeded requests alike."""
    temperature: float = Field(default=1.0, ge=0)
    """For requests that name none; OpenAI's default."""
    slips: ErrorRates = ErrorRates()
    """How play goes wrong above temperature 0."""
    moves_per_call: int = Field(default=1, ge=1)
    """Moves in one call of `step`, more where the plan would not fit into `calls_planned`."""
    moves_spread: int = Field(default=1, ge=0)
    """Above temperature 0 a call carries up to this many moves more."""
    calls_planned: int = Field(default=9, ge=1)
    """Tool calls within which a plan is to be played, the first look included; one less than an agent's usual limit."""
    search_limit: int = Field(default=50_000, ge=1)
    """Positions searched before a board counts as having no plan: some 20 ms; public rooms need under 1 ms."""
    plans_kept: int = Field(default=4096, ge=0)
    """Boards whose plan is remembered."""
    faults: FaultSettings = FaultSettings()
    """Failures on purpose; none by default."""
    latency_s: float = Field(default=0.0, ge=0)
    """Time added to every answer, as an engine would take."""
    jitter_s: float = Field(default=0.0, ge=0)
    """Up to this much more, evenly spread."""


class BuiltinModel(ModelServer[BuiltinModelSettings]):
    """Serves the player behind both OpenAI doors."""

    def __init__(self, settings: BuiltinModelSettings, context: Context) -> None:
        # Before the base registers its routes: each of them goes through the faults.
        self._faults = Faults(
            settings.faults, seed=settings.seed, latency_s=settings.latency_s, jitter_s=settings.jitter_s
        )
        super().__init__(settings, context)
        self._player = SokobanPolicy(
            settings.slips,
            moves_per_call=settings.moves_per_call,
            moves_spread=settings.moves_spread,
            calls_planned=settings.calls_planned,
            search_limit=settings.search_limit,
            plans_kept=settings.plans_kept,
        )

    def route(self, path: str, handler: Handler, *, cancellable: bool = False) -> None:
        """As the base, behind the faults; watching for hang-ups costs 15 us and pays only where a request waits."""
        super().route(path, self._faults.around(handler), cancellable=cancellable and self._faults.waits)

    def models(self) -> list[str]:
        """The one name."""
        return [self.settings.model]

    async def responses(self, request: Json, call: RawRequest) -> Json:
        """One turn."""
        temperature = response.temperature_of(request, self.settings.temperature)
        seed = response.seed_of(request)
        talk = board_parser.read(request)
        draws, tag = self._chance(talk.text, seed, temperature)
        turn = self._player.turn(talk, response.can_step(request), temperature, draws)
        return response.response(
            request, turn, model=self.settings.model, temperature=temperature, tag=tag, heard_bytes=len(talk.text)
        )

    def _chance(self, text: bytes, seed: object, temperature: float) -> tuple[RandomDraws, str]:
        """Numbers and id of this turn: fixed by a seed, else fresh; at temperature 0 the play is always the same."""
        if seed is not None:
            draws = RandomDraws(text, f"seed/{self.settings.seed}/{seed}")
            return draws, draws.tag
        fresh = secrets.token_hex(16)
        return RandomDraws(text, f"fresh/{self.settings.seed}/{fresh if temperature else ''}"), fresh


server = BuiltinModel
