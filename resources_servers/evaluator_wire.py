"""The wire format of NeMo Evaluator's `gym://` environments: a task by its index, and a verdict on plain text.

    POST /seed_session {"idx": 3}                          -> {prompt, expected_answer, metadata, messages, system}
    POST /verify       {"response": "...", "expected": "...", "metadata": {...}}
                                                           -> {reward, extracted_answer, scoring_details, metadata}

The evaluator opens no session and sends many requests over one cookie jar, so the task of a verdict is found by the
`metadata` that it returns unchanged, never by a cookie. Without a served dataset the evaluator has rows of its own; the
metadata then contains their fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollyard.records.types import Json

INDEX = "problem_idx"
DATASET = "served_dataset"
"""Keys of the metadata: the row's index, and the name of the dataset that it refers to."""
_ANSWERS = ("expected_answer", "answer")
_VERDICT_FIELDS = ("reward", "extracted_answer", "metadata")


def is_index_request(body: Json) -> bool:
    """Return True for a request for a task of the served dataset, False for one that contains a row itself."""
    return body.keys() == {"idx"}


def is_text_request(body: Json) -> bool:
    """Return True for a request for a verdict on plain text, in which `response` is a string instead of an object."""
    return "expected" in body and isinstance(body.get("response"), str)


def index_of(body: Json, dataset: str) -> int | None:
    """Return which row of the served dataset a text request is about; None if it is about a row of the evaluator."""
    metadata = _metadata(body)
    index = metadata.get(INDEX)
    return index if isinstance(index, int) and metadata.get(DATASET) == dataset else None


def row_in(body: Json) -> Json:
    """Return the row that a text request describes itself: the metadata, and NeMo Gym's `expected_answer`."""
    return {**_metadata(body), "expected_answer": body["expected"]}


def as_request(row: Json, text: str) -> Json:
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {"id": "msg_text", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    response = {"id": "resp_text", "object": "response", "status": "completed", "output": [message]}
    return {**row, "response": response}


def task(index: int, dataset: str, row: Json, added: Json) -> Json:
    """Return the task in the evaluator's format, and under `additions` in Rollyard's.

    `added`: the input and tools that the environment adds to the row.
    """
    params = row.get("responses_create_params") or {}
    items: list[Json] = [*added.get("input", ()), *_items(params.get("input"))]
    if isinstance(instructions := params.get("instructions"), str) and instructions:
        items.insert(0, {"role": "system", "content": instructions})
    tools = params.get("tools") or added.get("tools") or []
    messages = [{"role": item["role"], "content": _text(item.get("content"))} for item in items if item.get("role")]
    prompts = [message["content"] for message in messages if message["role"] == "user"]
    known = {"responses_create_params", "agent_ref", *_ANSWERS}
    metadata = {key: value for key, value in row.items() if key not in known and not isinstance(value, list | dict)}
    if isinstance(extra := row.get("verifier_metadata"), dict):
        metadata["verifier_metadata"] = extra
    if tools:
        metadata["tools"] = tools
    answer = next((row[key] for key in _ANSWERS if row.get(key) is not None), "")
    return {
        "prompt": prompts[-1] if prompts else "",
        "expected_answer": answer if isinstance(answer, str) else str(answer),
        "metadata": {**metadata, INDEX: index, DATASET: dataset},
        "messages": messages,
        "system": None,
        "additions": {"input": items, **({"tools": tools} if tools else {})},
    }


def text_verdict(verdict: Mapping[str, Any]) -> Json:
    answer = verdict.get("extracted_answer")
    return {
        "reward": verdict["reward"],
        "extracted_answer": answer if isinstance(answer, str | None) else str(answer),
        "scoring_details": {key: value for key, value in verdict.items() if key not in _VERDICT_FIELDS},
        "metadata": {},
    }


def _metadata(body: Json) -> Json:
    metadata = body.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _items(given: Any) -> list[Json]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return [item for item in given if isinstance(item, dict)] if isinstance(given, list) else []


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))
