"""Prompts as rows carry them: the chat form, and the completion forms of lm-eval with few-shots and stop strings."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from rollyard.services.types import Json


def chat(question: str, system: str) -> Json:
    """Create parameters of a chat: a system message, unless it is empty, and the question."""
    messages = [{"role": "system", "content": system}] if system else []
    return {"input": [*messages, {"role": "user", "content": question}]}


def completion(prompt: str, stops: Sequence[str], max_output_tokens: int) -> Json:
    """Create parameters of a text to be continued up to a stop string.

    The Responses API has no `stop`: it travels in `metadata.extra_body`, which model servers merge into the request to
    the engine. The world cuts at the stop strings too, for engines that do not know them.
    """
    extra = orjson.dumps({"stop": list(stops)}).decode()
    return {
        "input": [{"role": "user", "content": prompt}],
        "max_output_tokens": max_output_tokens,
        "metadata": {"extra_body": extra},
    }


def with_shots(shots: Sequence[tuple[str, str]], prompt: str) -> str:
    """lm-eval's few-shot prompt: answers behind one blank, examples apart by one blank line."""
    return "".join(f"{asked} {answered}\n\n" for asked, answered in shots) + prompt
