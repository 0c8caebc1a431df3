"""Rollout rows of the samples of an inspect_ai log (`.eval` or `.json`), which inspect_ai itself reads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from rollyard.records.errors import RunError
from rollyard.records.optional import load
from rollyard.records.types import Json


def inspect_samples(path: Path) -> Iterator[tuple[Json, str | None]]:
    """Yield each sample of the log as a rollout row, with the message of the error that ended it, if one did.

    The reward is the first scorer's; the mean, if it has several numbers; none, if it has only text. Raises RunError if
    the log cannot be read, and OperatorError if inspect_ai is not installed.
    """
    package = load("inspect_ai.log", "inspect", f"{path.name}, a log of inspect_ai,")
    try:
        header = package.read_eval_log(str(path), header_only=True)
        tasks: dict[str, int] = {}
        # Whole attachments: images and long texts are elsewhere in the file.
        for sample in package.read_eval_log_samples(str(path), all_samples_required=False, resolve_attachments=True):
            task = tasks.setdefault(str(sample.id), len(tasks))
            row = _row(sample, header.eval)
            yield {**row, "_ng_task_index": task, "_ng_rollout_index": sample.epoch - 1}, _error(sample)
    except Exception as error:  # inspect_ai raises errors of many packages
        raise RunError(
            f"{path} cannot be read as a log of inspect_ai: {type(error).__name__}: {str(error)[:300]}"
        ) from error


def _error(sample: Any) -> str | None:
    return None if sample.error is None else str(sample.error.message)


def _row(sample: Any, header: Any) -> Json:
    calls = [event for event in sample.events if event.event == "model" and event.role is None]
    log_probs = {
        choice.message.id: choice.logprobs.model_dump()["content"]
        for call in calls
        for choice in call.output.choices[:1]
        if choice.logprobs is not None
    }
    answers = [index for index, message in enumerate(sample.messages) if message.role == "assistant"]
    # The dataset's own messages may end with an answer, as an example.
    written = [index for index in answers if sample.messages[index].source != "input"]
    start = written[0] if written else len(sample.messages)
    conversation = [list(_items(message, log_probs)) for message in sample.messages]
    params: Json = {"input": [item for items in conversation[:start] for item in items]}
    if calls and calls[0].tools:
        params["tools"] = [_tool(tool) for tool in calls[0].tools]
    response = {"output": [item for items in conversation[start:] for item in items], "model": header.model}
    if usage := sample.model_usage.get(header.model):
        response["usage"] = {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
            "total_tokens": usage.total_tokens,
        }
    row: Json = {
        "responses_create_params": params,
        "agent_ref": {"name": header.solver or "inspect_ai"},
        "response": response,
        "dataset_name": header.task,
        "sample_id": sample.id,
        "expected_answer": sample.target,
        "metadata": orjson.loads(orjson.dumps(sample.metadata, default=str)),
        "timings": {"total_s": sample.total_time, "model_calls": len(calls)},
    }
    if sample.limit is not None:
        row |= {"finish_reason": f"{sample.limit.type}_limit", "truncated": True}
    kept = {key: value for key, value in row.items() if value not in (None, {}, [])}
    return kept | _verdict(sample.scores or {})


def _verdict(scores: Mapping[str, Any]) -> Json:
    known = {name: score for name, score in scores.items() if score is not None}
    if not known:
        return {}
    score = next(iter(known.values()))
    found: Json = {"scores": {name: score_fields(each) for name, each in known.items()}} | reward_fields(score.value)
    return found if score.answer is None else {**found, "extracted_answer": score.answer}


_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
"""inspect_ai's `value_to_float` has the same, but makes 0 of any other text."""


def reward_fields(value: Any) -> Json:
    """Return the reward of a score's value, or the mean of several, and `success` if it is a grade. Empty if a part is
    neither a number nor a grade: without it, the mean would be another one.
    """
    values = parts_of(value)
    numbers = [number for each in values if (number := _number(each)) is not None and math.isfinite(number)]
    if not numbers or len(numbers) < len(values):
        return {}
    reward = sum(numbers) / len(numbers)
    is_grade = isinstance(value, bool) or (isinstance(value, str) and _grade(value) is not None)
    return {"reward": reward, "success": reward == 1.0} if is_grade else {"reward": reward}


def parts_of(value: Any) -> list[Any]:
    """Return the values of a score that is a dictionary or a list, or its only one."""
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _number(value: Any) -> float | None:
    if isinstance(value, str) and (grade := _grade(value)) is not None:
        return grade
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None


def _grade(text: str) -> float | None:
    return _GRADES.get(text, _GRADES.get(text.lower()))


def score_fields(score: Any) -> Json:
    """Return what a rollout row has of a score."""
    value = None if isinstance(score.value, float) and not math.isfinite(score.value) else score.value
    fields = {"value": value, "answer": score.answer, "explanation": score.explanation}
    return {name: found for name, found in fields.items() if found is not None}


def _items(message: Any, log_probs: Mapping[str, Any]) -> Iterator[Json]:
    parts = [] if isinstance(message.content, str) else message.content
    if message.role == "tool":
        output = tool_text(message) if message.error is not None else _content(message)
        yield {"type": "function_call_output", "call_id": message.tool_call_id, "output": output}
    elif message.role != "assistant":
        yield {"role": message.role, "content": _content(message)}
    else:
        for part in parts:
            if part.type == "reasoning":
                text = part.summary or part.reasoning if part.redacted else part.reasoning
                yield {"type": "reasoning", "summary": [{"type": "summary_text", "text": text or ""}]}
        if message.text or not message.tool_calls:
            said: Json = {"type": "output_text", "text": message.text, "annotations": []}
            if message.id in log_probs and not message.tool_calls:
                said["logprobs"] = log_probs[message.id]
            yield {"type": "message", "role": "assistant", "content": [said], "status": "completed"}
        for call in message.tool_calls or ():
            arguments = orjson.dumps(call.arguments).decode()
            yield {"type": "function_call", "call_id": call.id, "name": call.function, "arguments": arguments}


def tool_text(message: Any) -> str:
    """Return a tool's result as text. An error's message comes first, because the content is then empty."""
    error = f"{message.error.message}\n" if message.error is not None else ""
    return f"{error}{message.text}".rstrip("\n") if error else str(message.text)


def _content(message: Any) -> str | list[Json]:
    if isinstance(message.content, str):
        return message.content
    return [_part(part) for part in message.content]


def _part(part: Any) -> Json:
    if part.type == "text":
        return {"type": "input_text", "text": part.text}
    if part.type == "image":
        return {"type": "input_image", "image_url": part.image, "detail": part.detail}
    return {"type": "input_text", "text": f"[{part.type}]"}


def _tool(tool: Any) -> Json:
    parameters = tool.parameters.model_dump(exclude_none=True)
    return {"type": "function", "name": tool.name, "description": tool.description, "parameters": parameters}
