"""A StackSession without servers, whose only agent answers with a function of the request and its attempt."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from rollyard.interop.episode_player import EpisodePlayer
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.training.training_sequence import SequenceRules
from rollyard.training.trl.episodes import PlaySettings
from rollyard.training.trl.stack_session import LoopThread
from tests.external.training.scripted_agent import AT_ONCE, Agent, Answer, stack_of
from tests.unit.training.recorded_turns import row, turn


class ScriptedSession:
    def __init__(self, agent: Agent) -> None:
        self.stack = stack_of(agent)
        self.loop = LoopThread("scripted")

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        return self.loop.submit(coroutine)

    def agent(self, name: str | None) -> str:
        return name or "player"

    def close(self) -> None:
        self.loop.close()


@contextmanager
def playing(answer: Answer, *, constrained: Any = "refuse", **settings: Any) -> Iterator[tuple[EpisodePlayer, Agent]]:
    agent = Agent(answer)
    rules: Json = {"pauses": AT_ONCE, "max_failure_rate": 1.0, "sequences": SequenceRules(constrained), **settings}
    connect: Any = lambda head, **_: ScriptedSession(agent)  # noqa: E731
    player = EpisodePlayer("head:1", settings=PlaySettings(**rules), connect=connect)
    try:
        yield player, agent
    finally:
        player.close()


def task(kind: str, name: str = "a") -> Json:
    """A row whose `kind` says how `answer` ends it."""
    return {"responses_create_params": {"input": f"Solve {name}."}, "kind": kind, "name": name}


async def answer(request: Json, attempt: int) -> Json:
    kind, temperature = request["kind"], request["responses_create_params"].get("temperature", 1.0)
    first = turn([1, 2], [3, 4], policy_version="step_000007", temperature=temperature)
    second = turn([1, 2, 3, 4, 9], [5], policy_version="step_000008", temperature=temperature)
    match kind:
        case "won":
            return row(first, second, reward=1.0)
        case "lost":
            return row(first, second, reward=0.25)
        case "cut":
            return row(first, reward=0.5, finish_reason="length")
        case "changed":
            return row(first, turn([8, 9], [6], policy_version="step_000008", temperature=temperature), reward=0.75)
        case "constrained":
            return row({**first, "token_trace": {"sampling": {"temperature": 1.0, "constraint": "json"}}}, reward=1.0)
        case "broken":
            raise Failure(FailureKind.SERVER_ERROR, "the environment has crashed", server="environment")
        case "slow":
            raise Failure(FailureKind.TIMEOUT, "the model took too long", server="policy_model")
    raise AssertionError(kind)
