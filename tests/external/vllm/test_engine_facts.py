"""What our code takes for granted about vLLM's answers: token ids, rendering, parsing, refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.external.vllm.calls import MOVES, asking
from tests.external.vllm.engine import Engine

CHAT = "/v1/chat/completions"
GENERATE = "/inference/v1/generate"


def tokenized(engine: Engine, request: dict[str, Any]) -> list[int]:
    """The prompt of a chat request, as /tokenize has it."""
    body = {key: request[key] for key in ("model", "messages", "tools")}
    tokens: list[int] = engine.post("/tokenize", body)["tokens"]
    return tokens


def called(choice: dict[str, Any]) -> list[str]:
    """The moves of an answer that must be one tool call and nothing else."""
    assert not choice["message"]["content"]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "step"
    moves: list[str] = json.loads(call["function"]["arguments"])["actions"]
    return moves


def test_a_regex_makes_random_weights_call_a_tool_and_seeds_make_the_calls_differ(engine: Engine) -> None:
    choices = [engine.post(CHAT, asking(seed))["choices"][0] for seed in range(20)]
    calls = [called(choice) for choice in choices]
    assert {choice["finish_reason"] for choice in choices} == {"tool_calls"}
    assert {move for moves in calls for move in moves} <= set(MOVES)
    assert len({tuple(moves) for moves in calls}) > 1
    assert called(engine.post(CHAT, asking(3))["choices"][0]) == calls[3]


def test_return_token_ids_gives_the_prompt_as_tokenize_has_it_and_what_was_sampled(engine: Engine) -> None:
    request = asking(return_token_ids=True, logprobs=True)
    answer = engine.post(CHAT, request)
    (choice,) = answer["choices"]
    assert answer["prompt_token_ids"] == tokenized(engine, request)
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == answer["usage"]["completion_tokens"]
    text = engine.post("/detokenize", {"model": "tiny", "tokens": choice["token_ids"]})["prompt"]
    (call,) = choice["message"]["tool_calls"]
    assert text.startswith('<tool_call>\n{"name": "step", "arguments": ' + call["function"]["arguments"])


def test_the_text_of_an_answer_tokenizes_otherwise_than_it_was_sampled(engine: Engine) -> None:
    sampled = engine.post(CHAT, asking(return_token_ids=True))["choices"][0]["token_ids"]
    text = engine.post("/detokenize", {"model": "tiny", "tokens": sampled})["prompt"]
    again = engine.post("/tokenize", {"model": "tiny", "prompt": text, "add_special_tokens": False})["tokens"]
    assert engine.post("/detokenize", {"model": "tiny", "tokens": again})["prompt"] == text
    assert again != sampled


def test_render_gives_a_generate_request_that_samples_what_the_chat_would(engine: Engine) -> None:
    request = asking(5, return_token_ids=True)
    rendered = engine.post(f"{CHAT}/render", request)
    assert rendered["token_ids"] == tokenized(engine, request)
    params = rendered["sampling_params"]
    assert (params["temperature"], params["max_tokens"], params["seed"]) == (0.8, 200, 5)
    assert params["structured_outputs"]["regex"] == request["structured_outputs"]["regex"]
    answer = engine.post(GENERATE, rendered)
    assert answer["choices"][0]["token_ids"] == engine.post(CHAT, request)["choices"][0]["token_ids"]


def test_generate_repeats_the_prompt_when_asked_and_returns_ids_alone(engine: Engine) -> None:
    body = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 4, "ignore_eos": True}, "return_token_ids": True}
    answer = engine.post(GENERATE, body)
    assert answer["prompt_token_ids"] == [5, 6, 7]
    assert answer["output_mode"] == "tokens"
    (choice,) = answer["choices"]
    assert (len(choice["token_ids"]), choice["finish_reason"], choice["logprobs"]) == (4, "length", None)
    assert "text" not in choice


def test_derender_turns_a_generate_answer_into_the_chats_but_for_the_finish_reason(engine: Engine) -> None:
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


def test_derender_refuses_to_work_without_the_chat_request(engine: Engine) -> None:
    generated = engine.post(GENERATE, engine.post(f"{CHAT}/render", asking()))
    refused = engine.client.post(f"{CHAT}/derender", json={"generate_response": generated})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("chat_request is required")
