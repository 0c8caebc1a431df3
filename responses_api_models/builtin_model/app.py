"""The built-in model: a policy that plays Sokoban and needs no GPU. Like a real model, it sees only the conversation.

board_parser.py     finds the board in the conversation
planner.py          computes the shortest solution of a board
policy.py           decides a turn, with configurable errors
random_draws.py     random numbers that depend only on the seed and the conversation
response.py         builds the Response object
fault_injection.py  simulates failures of an endpoint
"""

from __future__ import annotations

import secrets
from typing import ClassVar

from pydantic import Field

from rollyard.records.types import Json
from rollyard.responses_api_models.base import ModelServer
from rollyard.responses_api_models.builtin_model import board_parser, response
from rollyard.responses_api_models.builtin_model.fault_injection import Faults, FaultSettings
from rollyard.responses_api_models.builtin_model.policy import ErrorRates, SokobanPolicy
from rollyard.responses_api_models.builtin_model.random_calls import callable_tools, random_turn
from rollyard.responses_api_models.builtin_model.random_draws import RandomDraws
from rollyard.responses_api_models.convert.requests import refuse_logprobs, refuse_state
from rollyard.services.http.request import Handler, RawRequest
from rollyard.services.server.app import Context
from rollyard.services.server.settings import ServerSettings


class BuiltinModelSettings(ServerSettings):
    """Settings of the built-in model."""

    NOT_IDENTITY: ClassVar[frozenset[str]] = ServerSettings.NOT_IDENTITY | {
        "latency_s",
        "jitter_s",
        "plans_kept",
        "faults",
    }

    model: str = "builtin"
    """Name in `GET /v1/models` and in every response; the request's `model` is ignored."""
    seed: int = 0
    """Seeds every random stream. Servers with the same seed return the same responses to the same seeded requests."""
    temperature: float = Field(default=1.0, ge=0)
    """Temperature for requests that do not set one; the default is the same as OpenAI's."""
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
    faults: FaultSettings = FaultSettings()
    """Injected failures; none by default."""
    latency_s: float = Field(default=0.0, ge=0)
    """Latency added to every response to simulate an engine."""
    jitter_s: float = Field(default=0.0, ge=0)
    """Maximum additional latency, uniformly distributed."""


class BuiltinModel(ModelServer[BuiltinModelSettings]):
    """Serves the Sokoban policy through both OpenAI APIs."""

    def __init__(self, settings: BuiltinModelSettings, context: Context) -> None:
        # Created before the base class registers its routes, because `route` wraps their handlers.
        self._faults = Faults(
            settings.faults, seed=settings.seed, latency_s=settings.latency_s, jitter_s=settings.jitter_s
        )
        super().__init__(settings, context)
        self._policy = SokobanPolicy(
            settings.slips,
            moves_per_call=settings.moves_per_call,
            moves_spread=settings.moves_spread,
            calls_planned=settings.calls_planned,
            search_limit=settings.search_limit,
            plans_kept=settings.plans_kept,
        )

    def route(self, path: str, handler: Handler, *, cancellable: bool = False) -> None:
        """Register a route behind the fault injection.

        Detecting disconnects costs 15 us per request, so it is enabled only if requests can wait.
        """
        super().route(path, self._faults.around(handler), cancellable=cancellable and self._faults.waits)

    def models(self) -> list[str]:
        return [self.settings.model]

    async def count_tokens(self, request: Json, call: RawRequest) -> int:
        """Return the number that the usage of a response reports."""
        return response.input_tokens(len(board_parser.read(request).text))

    async def responses(self, request: Json, call: RawRequest) -> Json:
        refuse_state(request)
        refuse_logprobs(request, self.name)
        temperature = response.temperature_of(request, self.settings.temperature)
        seed = response.seed_of(request)
        conversation = board_parser.read(request)
        draws, tag = self._draws(conversation.text, seed, temperature)
        can_step = response.can_step(request)
        tools = [] if can_step else callable_tools(request)
        if tools:
            turn = random_turn(request, tools, done=conversation.done, draws=draws)
        else:
            turn = self._policy.turn(conversation, can_step, temperature, draws)
        return response.response(
            request,
            turn,
            model=self.settings.model,
            temperature=temperature,
            tag=tag,
            input_bytes=len(conversation.text),
        )

    def _draws(self, text: bytes, seed: object, temperature: float) -> tuple[RandomDraws, str]:
        """Return the random numbers and the id of this turn.

        A seed determines both. Without a seed the id is random, and so are the numbers unless the temperature is 0.
        """
        if seed is not None:
            draws = RandomDraws(text, f"seed/{self.settings.seed}/{seed}")
            return draws, draws.tag
        fresh = secrets.token_hex(16)
        return RandomDraws(text, f"fresh/{self.settings.seed}/{fresh if temperature else ''}"), fresh


server = BuiltinModel
