"""The targets by name: functions that take one input and raise if a property does not hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.fuzz import answers, histories, servers, texts

CORPUS = Path(__file__).parent / "corpus"
Target = Callable[[bytes], None]

JSON: dict[str, Target] = {
    "responses_request": partial(servers.model_request, "/v1/responses"),
    "chat_request": partial(servers.model_request, "/v1/chat/completions"),
    "messages_request": partial(servers.model_request, "/v1/messages"),
    "engine_answer": partial(servers.engine_answer, False),
    "model_turn": servers.model_turn,
    "tool_result": servers.tool_result,
    "tool_arguments": servers.tool_arguments,
    "verify_request": servers.verify_request,
    "run_answer": servers.run_answer,
    "instructions": answers.instructions,
}
"""Targets whose inputs are mostly JSON."""

TARGETS: dict[str, Target] = JSON | {
    "history": histories.history,
    "http_request": servers.http_request,
    "engine_stream": partial(servers.engine_answer, True),
    "http_response": texts.http_response,
    "channel_frames": texts.channel_frames,
    "sse": texts.sse,
    "jsonl": texts.jsonl,
    "expressions": texts.expressions,
    "overrides": texts.overrides,
    "dockerfile": texts.dockerfile,
    "task_toml": texts.task_toml,
    "formula": answers.formula,
    "program": answers.program,
    "judgement": answers.judgement,
}


def corpus(target: str) -> Iterator[Path]:
    """Yield the inputs that are kept for a target: a seed of each kind, and what once broke it."""
    yield from sorted((CORPUS / target).iterdir())
