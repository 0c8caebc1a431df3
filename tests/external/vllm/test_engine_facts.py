"""Properties of vLLM's responses that our code relies on: token ids, rendering, parsing, rejections."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.external.vllm.calls import MOVES, asking
from tests.external.vllm.engine import Engine

CHAT = "/v1/chat/completions"
GENERATE = "/inference/v1/generate"


def tokenized(engine: Engine, request: dict[str, Any]) -> list[int]:
    """The prompt of a chat request according to /tokenize."""
    body = {key: request[key] for key in ("model", "messages", "tools")}
    tokens: list[int] = engine.post("/tokenize", body)["tokens"]
    return tokens


def called(choice: dict[str, Any]) -> list[str]:
    """The moves of a response that must consist of one tool call."""
    assert not choice["message"]["content"]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "step"
    moves: list[str] = json.loads(call["function"]["arguments"])["actions"]
    return moves


def test_a_regex_makes_random_weights_call_a_tool_and_seeds_vary_the_calls(engine: Engine) -> None:
    choices = [engine.post(CHAT, asking(seed))["choices"][0] for seed in range(8)]
    calls = [called(choice) for choice in choices]
    assert {choice["finish_reason"] for choice in choices} == {"tool_calls"}
    assert {move for moves in calls for move in moves} <= set(MOVES)
    assert len({tuple(moves) for moves in calls}) > 1
    assert called(engine.post(CHAT, asking(3))["choices"][0]) == calls[3]


def test_return_token_ids_gives_the_prompt_like_tokenize_and_the_sampled_ids(engine: Engine) -> None:
    request = asking(return_token_ids=True, logprobs=True)
    answer = engine.post(CHAT, request)
    (choice,) = answer["choices"]
    assert answer["prompt_token_ids"] == tokenized(engine, request)
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == answer["usage"]["completion_tokens"]
    text = engine.post("/detokenize", {"model": "tiny", "tokens": choice["token_ids"]})["prompt"]
    (call,) = choice["message"]["tool_calls"]
    assert text.startswith('<tool_call>\n{"name": "step", "arguments": ' + call["function"]["arguments"])


def test_the_text_of_a_response_is_tokenized_differently_than_it_was_sampled(engine: Engine) -> None:
    sampled = engine.post(CHAT, asking(return_token_ids=True))["choices"][0]["token_ids"]
    text = engine.post("/detokenize", {"model": "tiny", "tokens": sampled})["prompt"]
    again = engine.post("/tokenize", {"model": "tiny", "prompt": text, "add_special_tokens": False})["tokens"]
    assert engine.post("/detokenize", {"model": "tiny", "tokens": again})["prompt"] == text
    assert again != sampled


def test_render_gives_a_generate_request_that_samples_the_same_as_chat(engine: Engine) -> None:
    request = asking(5, return_token_ids=True)
    rendered = engine.post(f"{CHAT}/render", request)
    assert rendered["token_ids"] == tokenized(engine, request)
    params = rendered["sampling_params"]
    assert (params["temperature"], params["max_tokens"], params["seed"]) == (0.8, 200, 5)
    assert params["structured_outputs"]["regex"] == request["structured_outputs"]["regex"]
    answer = engine.post(GENERATE, rendered)
    assert answer["choices"][0]["token_ids"] == engine.post(CHAT, request)["choices"][0]["token_ids"]


def test_generate_returns_only_ids_and_on_request_the_prompt(engine: Engine) -> None:
    body = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 4, "ignore_eos": True}, "return_token_ids": True}
    answer = engine.post(GENERATE, body)
    assert answer["prompt_token_ids"] == [5, 6, 7]
    assert answer["output_mode"] == "tokens"
    (choice,) = answer["choices"]
    assert (len(choice["token_ids"]), choice["finish_reason"], choice["logprobs"]) == (4, "length", None)
    assert "text" not in choice


def test_derender_gives_the_chat_response_except_for_the_finish_reason(engine: Engine) -> None:
    request = asking(7, logprobs=True, return_token_ids=True)
    rendered = engine.post(f"{CHAT}/render", request)
    generated = engine.post(GENERATE, rendered)
    body = {"generate_response": generated, "chat_request": request, "prompt_tokens": len(rendered["token_ids"])}
    answer = engine.post(f"{CHAT}/derender", body)
    direct = engine.post(CHAT, request)
    assert answer["object"] == "chat.completion"
    assert answer["usage"] == direct["usage"]
    assert called(answer["choices"][0]) == called(direct["choices"][0])
    reasons = [one["choices"][0]["finish_reason"] for one in (generated, answer, direct)]
    assert reasons == ["stop", "stop", "tool_calls"]
    assert answer["choices"][0]["token_ids"] == direct["choices"][0]["token_ids"]
    values = [[part["logprob"] for part in one["choices"][0]["logprobs"]["content"]] for one in (answer, direct)]
    assert values[0] == pytest.approx(values[1], abs=1e-4)


def test_derender_requires_the_chat_request(engine: Engine) -> None:
    generated = engine.post(GENERATE, engine.post(f"{CHAT}/render", asking()))
    rejected = engine.client.post(f"{CHAT}/derender", json={"generate_response": generated})
    assert rejected.status_code == 400
    assert "chat_request" in rejected.json()["error"]["message"]
