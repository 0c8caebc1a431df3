"""Builds prompts for dataset rows: chats, and lm-eval's completion prompts with few-shot examples and stop strings."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from rollyard.records.types import Json


def chat(question: str, system: str) -> Json:
    messages = [{"role": "system", "content": system}] if system else []
    return {"input": [*messages, {"role": "user", "content": question}]}


def completion(prompt: str, stops: Sequence[str], max_output_tokens: int) -> Json:
    """Return the request parameters of a text completion that ends at a stop string.

    The Responses API does not support `stop`, so it is sent in `metadata.extra_body`, which model servers merge into
    the engine request. The environment also cuts the text at the stop strings, in case the engine does not support
    them.
    """
    extra = orjson.dumps({"stop": list(stops)}).decode()
    return {
        "input": [{"role": "user", "content": prompt}],
        "max_output_tokens": max_output_tokens,
        "metadata": {"extra_body": extra},
    }


def few_shot(template: str, shots: Sequence[tuple[str, str]], question: str) -> str:
    """Build lm-eval's few-shot prompt: a space before each answer, and an empty line after each example."""
    solved = [f"{template.replace('{}', shot)} {answer}\n\n" for shot, answer in shots]
    return "".join(solved) + template.replace("{}", question)
