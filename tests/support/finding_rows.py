"""Rows for the tests of findings: a message, tool calls and a verdict in one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rollyard.analysis.findings.detector import Finding
from rollyard.analysis.findings.find import findings_of
from rollyard.records.types import Json
from tests.support.rollout_files import load_run

LOOK = ("look", "{}", "a wall")


def message(text: str) -> Json:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def played(
    task: int,
    repeat: int = 0,
    *,
    says: str = "done",
    calls: Sequence[tuple[str, str, str]] = (),
    tools: Iterable[str] = (),
    success: bool = False,
    prompt: str = "",
    **more: Any,
) -> Json:
    """A rollout: calls as (name, arguments, output), then a message. The reward is 1 if `success`."""
    output: list[Json] = []
    for number, (name, arguments, result) in enumerate(calls):
        output.append({"type": "function_call", "name": name, "arguments": arguments, "call_id": str(number)})
        output.append({"type": "function_call_output", "call_id": str(number), "output": result})
    output.append(message(says))
    return {
        "responses_create_params": {
            "input": [{"role": "user", "content": prompt or f"Solve task {task}."}],
            "tools": [{"type": "function", "name": name} for name in tools],
        },
        "response": {"output": output, "usage": {"input_tokens": 10, "output_tokens": 20}},
        "reward": float(success),
        "success": success,
        "_ng_task_index": task,
        "_ng_rollout_index": repeat,
        **more,
    }


def found_in(folder: Path, rows: Sequence[Json]) -> dict[str, Finding]:
    """The findings of a file with these rows, by kind, most important first."""
    findings = findings_of(load_run(folder, rows))
    assert findings is not None
    return {one.kind: one for one in findings.findings}
