"""Numbers that would corrupt training cause a failure and are never recorded."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.records.types import Json
from rollyard.services.responses.policy_logprobs import invalid_numbers
from tests.support.token_clients import TEXT_TURN, open_episode
from tests.support.token_engine import TokenEngine

INVALID_VALUES: list[Any] = [-9999.0, -9999, None, "-1.0", True, 0.5, -1e309, float("nan")]


class InvalidLogprobs(TokenEngine):
    """Returns `value` as the log-probability of each turn's second token."""

    value: Any = None

    def _chat(self, body: Json) -> Json:
        return self._with_value(super()._chat(body))

    def _generate(self, body: Json) -> Json:
        return self._with_value(super()._generate(body))

    def _complete(self, body: Json) -> Json:
        answer = super()._complete(body)
        if isinstance(body["prompt"], list):
            answer["choices"][0]["logprobs"]["token_logprobs"][1] = self.value
        return answer

    def _with_value(self, answer: Json) -> Json:
        answer["choices"][0]["logprobs"]["content"][1]["logprob"] = self.value
        return answer


@pytest.mark.parametrize(
    ("backend", "value"),
    [
        *(("off", -9999.0), ("generate", -9999), ("completions", None)),
        *(("off", "-1.0"), ("generate", True), ("completions", 0.5), ("generate", None)),
    ],
)
async def test_an_invalid_log_probability_is_a_named_failure(value: Any, backend: str) -> None:
    engine = InvalidLogprobs([TEXT_TURN])
    engine.value = value
    async with open_episode(engine, token_in=backend, max_attempts=1) as client:
        status, problem = await client.send("/v1/responses", {"input": "go"})
    assert (status, problem["type"]) == (502, "urn:rollyard:malformed_answer")
    for named in (repr(value), f"token {TEXT_TURN[1]}", f"2 of {len(TEXT_TURN)}"):
        assert named in problem["detail"]
    assert "\n" not in problem["detail"]


def test_invalid_log_probabilities_are_detected() -> None:
    for value in INVALID_VALUES:
        assert repr(value) in invalid_numbers([1, 2, 3], [-0.5, value, -0.5])


def test_invalid_token_ids_are_detected() -> None:
    for ids in ([1, -1, 2], [1, 2.0, 3], [1, True, 3], [1, None, 3], "abc", None):
        assert "token ids" in invalid_numbers(ids, [-0.5] * 3), ids


def test_finite_numbers_up_to_zero_are_valid_log_probabilities() -> None:
    for numbers in ([-0.5, 0.0, -80.0], [-1, 0, -3], [1e-4, -0.0, -700.5]):
        assert invalid_numbers([1, 2, 3], numbers) == ""


@pytest.mark.parametrize("backend", ["off", "generate", "completions"])
async def test_an_invalid_log_probability_in_a_stream_is_the_same_failure(backend: str) -> None:
    engine = InvalidLogprobs([TEXT_TURN])
    engine.value = -9999.0
    messages = [{"role": "user", "content": "go"}]
    async with open_episode(engine, token_in=backend, max_attempts=1) as client:
        for path, request in (("/v1/responses", {"input": "go"}), ("/v1/chat/completions", {"messages": messages})):
            status, problem = await client.send(path, {**request, "stream": True})
            assert (status, problem["type"]) == (502, "urn:rollyard:malformed_answer")


async def test_a_prompt_without_valid_token_ids_is_a_named_failure() -> None:
    class Odd(TokenEngine):
        ids: Any = None

        def _chat(self, body: Json) -> Json:
            return {**super()._chat(body), "prompt_token_ids": self.ids}

    engine = Odd([TEXT_TURN])
    for engine.ids in [[1, None], [True], "abc"]:
        async with open_episode(engine, token_in="off", max_attempts=1) as client:
            status, problem = await client.send("/v1/responses", {"input": "go"})
        assert (status, problem["type"]) == (502, "urn:rollyard:malformed_answer")


async def test_malformed_weight_versions_are_a_named_failure() -> None:
    class Odd(TokenEngine):
        spans: Any = None

        def _generate(self, body: Json) -> Json:
            answer = super()._generate(body)
            answer["choices"][0]["weight_versions"] = self.spans
            return answer

    engine = Odd([TEXT_TURN])
    for engine.spans in [["0"], [None], [["0", 0, 1]]]:
        async with open_episode(engine, max_attempts=1) as client:
            status, problem = await client.send("/v1/responses", {"input": "go"})
        assert (status, problem["type"]) == (502, "urn:rollyard:malformed_answer")
