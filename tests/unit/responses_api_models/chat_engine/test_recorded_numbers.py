"""Numbers that would poison a trainer are a failure and never on record."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.services.responses.policy_logprobs import invalid_numbers
from rollyard.services.types import Json
from tests.support.token_clients import TEXT_TURN, open_episode
from tests.support.token_engine import TokenEngine

POISON: list[Any] = [-9999.0, -9999, None, "-1.0", True, 0.5, -1e309, float("nan")]


class Poisoned(TokenEngine):
    """Gives such a log-probability for the second token of each turn."""

    poison: Any = None

    def _chat(self, body: Json) -> Json:
        return self._spoilt(super()._chat(body))

    def _generate(self, body: Json) -> Json:
        return self._spoilt(super()._generate(body))

    def _complete(self, body: Json) -> Json:
        answer = super()._complete(body)
        if isinstance(body["prompt"], list):
            answer["choices"][0]["logprobs"]["token_logprobs"][1] = self.poison
        return answer

    def _spoilt(self, answer: Json) -> Json:
        answer["choices"][0]["logprobs"]["content"][1]["logprob"] = self.poison
        return answer


@pytest.mark.parametrize("way", ["off", "generate", "completions"])
@pytest.mark.parametrize("poison", POISON[:6], ids=repr)
async def test_a_log_probability_that_is_none_is_a_named_failure(poison: Any, way: str) -> None:
    engine = Poisoned([TEXT_TURN])
    engine.poison = poison
    async with open_episode(engine, token_in=way, max_attempts=1) as player:
        status, problem = await player.send("/v1/responses", {"input": "go"})
    assert (status, problem["type"]) == (502, "urn:rollyard:malformed_answer")
    assert f"log-probability {poison!r} of token {TEXT_TURN[1]}, number 2 of {len(TEXT_TURN)}" in problem["detail"]
    assert "\n" not in problem["detail"]


@pytest.mark.parametrize("poison", POISON, ids=repr)
def test_no_list_with_such_a_number_counts_as_log_probabilities(poison: Any) -> None:
    assert "a finite number up to 0 is expected" in invalid_numbers([1, 2, 3], [-0.5, poison, -0.5])


@pytest.mark.parametrize("ids", [[1, -1, 2], [1, 2.0, 3], [1, True, 3], [1, None, 3], "abc", None], ids=repr)
def test_what_is_no_token_id_is_none(ids: Any) -> None:
    assert "not token ids" in invalid_numbers(ids, [-0.5] * 3)


@pytest.mark.parametrize("numbers", [[-0.5, 0.0, -80.0], [-1, 0, -3], [1e-4, -0.0, -700.5]], ids=str)
def test_finite_numbers_up_to_zero_are_log_probabilities(numbers: list[float]) -> None:
    assert invalid_numbers([1, 2, 3], numbers) == ""


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
@pytest.mark.parametrize("way", ["off", "generate", "completions"])
async def test_in_a_stream_such_a_number_is_the_same_failure(way: str, path: str) -> None:
    engine = Poisoned([TEXT_TURN])
    engine.poison = -9999.0
    asked: Json = {"input": "go"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "go"}]}
    async with open_episode(engine, token_in=way, max_attempts=1) as player:
        status, problem = await player.send(path, {**asked, "stream": True})
    assert (status, problem["type"]) == (502, "urn:rollyard:malformed_answer")


@pytest.mark.parametrize("ids", [[1, None], [1.5], ["a"], [True], [-1], "abc"], ids=repr)
async def test_a_prompt_that_is_not_token_ids_is_a_named_failure(ids: Any) -> None:
    class Odd(TokenEngine):
        def _chat(self, body: Json) -> Json:
            return {**super()._chat(body), "prompt_token_ids": ids}

    async with open_episode(Odd([TEXT_TURN]), token_in="off", max_attempts=1) as player:
        status, problem = await player.send("/v1/responses", {"input": "go"})
    assert (status, problem["type"]) == (502, "urn:rollyard:malformed_answer")


@pytest.mark.parametrize("spans", [["0"], [None], [["0", 0, 1]]], ids=repr)
async def test_weight_versions_that_are_not_spans_are_a_named_failure(spans: Any) -> None:
    class Odd(TokenEngine):
        def _generate(self, body: Json) -> Json:
            answer = super()._generate(body)
            answer["choices"][0]["weight_versions"] = spans
            return answer

    async with open_episode(Odd([TEXT_TURN]), max_attempts=1) as player:
        status, problem = await player.send("/v1/responses", {"input": "go"})
    assert (status, problem["type"]) == (502, "urn:rollyard:malformed_answer")
