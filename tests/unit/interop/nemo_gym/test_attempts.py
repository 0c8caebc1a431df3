"""Attempts of a trainer's rollout: what is tried again, and what becomes of a rollout that fails."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from types import ModuleType

import orjson
import pytest

from rollyard.interop.nemo_gym.collection_helper import Attempts, CollectionSettings, RolloutFailed
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.services.backoff import Backoff
from rollyard.services.http.request import RawRequest, RawResponse, problem_response
from tests.support.fixtures import http_transport, listening, make_client, make_server
from tests.support.nemo_rl_rules import loss_multiplier

ROW: Json = {"responses_create_params": {"input": "go"}, "agent_ref": {"name": "player"}, "_rowidx": 0}
TOKENS: Json = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.1]}
GOOD: Json = {**ROW, "response": {"output": [{"type": "message", **TOKENS}]}, "reward": 1.0}
Answer = Callable[[int], Json | Failure]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollyard.interop.nemo_gym.collection_helper.PAUSES", Backoff(first_pause_s=0.001))


async def run(answer: Answer, settings: CollectionSettings, row: Json = ROW) -> tuple[Json, int]:
    """The result of a row whose agent answers by the number of earlier requests, and the number of requests."""
    requests: list[bytes] = []

    async def handle(call: RawRequest) -> bytes | RawResponse:
        requests.append(call.body)
        found = answer(len(requests) - 1)
        return problem_response(found.problem) if isinstance(found, Failure) else orjson.dumps(found)

    async with http_transport() as transport, listening(make_server("player", routes={"/run": handle})) as hosted:
        client = make_client({"player": [hosted.url]}, transport)
        attempts = Attempts(client, settings, agents=["player"], model_servers=["policy"])
        return await attempts.run(row), len(requests)


def lost(count: int) -> Failure:
    return Failure(FailureKind.SESSION_LOST, "it died", server="sokoban")


MASK = CollectionSettings(failed_rollouts="mask", max_attempts=2)
RAISE = CollectionSettings(failed_rollouts="raise", max_attempts=2)


async def test_a_rollout_that_a_dying_server_interrupted_is_played_again() -> None:
    found, requests = await run(lambda count: GOOD if count else lost(count), RAISE)
    assert (found["reward"], loss_multiplier(found), requests) == (1.0, 1.0, 2)


async def test_a_rollout_that_keeps_failing_is_raised_as_an_exception_that_reaches_another_process() -> None:
    with pytest.raises(RolloutFailed, match=r"session_lost: it died .*sokoban") as raised:
        await run(lost, RAISE)
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (copy.status, str(copy)) == (410, str(raised.value))
    assert raised.value.__cause__ is None


async def test_failed_rollouts_are_masked_by_default_only_under_nemo_rl(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = CollectionSettings(max_attempts=1)
    with pytest.raises(RolloutFailed):
        await run(lost, settings)
    monkeypatch.setitem(sys.modules, "nemo_rl", ModuleType("nemo_rl"))
    assert loss_multiplier((await run(lost, settings))[0]) == 0.0


@pytest.mark.parametrize("kind", [FailureKind.UNAUTHORIZED, FailureKind.UPSTREAM_REFUSED, FailureKind.BAD_REQUEST])
async def test_an_error_of_the_configuration_is_raised_at_once_and_never_masked(kind: FailureKind) -> None:
    with pytest.raises(RolloutFailed, match=str(kind)):
        await run(lambda count: Failure(kind, "no such model", server="policy"), MASK)


@pytest.mark.parametrize(
    ("kind", "server", "requests"),
    [
        (FailureKind.TIMEOUT, "policy", 1),
        (FailureKind.TIMEOUT, "player", 1),
        (FailureKind.TIMEOUT, "sokoban", 2),
        (FailureKind.BAD_TASK, "sokoban", 1),
    ],
)
async def test_no_answer_buys_a_second_try_by_being_slow(kind: FailureKind, server: str, requests: int) -> None:
    found, made = await run(lambda count: Failure(kind, "slow", server=server), MASK)
    assert (loss_multiplier(found), made) == (0.0, requests)


@pytest.mark.parametrize("answer", [[], {"reward": None}, {"reward": 1.0}])
async def test_a_malformed_answer_is_never_a_reward(answer: Json) -> None:
    found, requests = await run(lambda count: answer, MASK)
    assert (loss_multiplier(found), requests) == (0.0, 2)
    assert found["failure_kind"] == "malformed_answer"
