"""Rows of X_failures.jsonl, also with what had been said until then."""

from __future__ import annotations

from typing import Any

from rollyard.records.types import FailureRow, Json

CALL: Json = {"type": "function_call", "name": "step", "arguments": "{}", "call_id": "a"}
RESULT: Json = {"type": "function_call_output", "call_id": "a", "output": "moved"}


def failed(task: int, repeat: int, attempt: int = 0, **more: Any) -> Json:
    keys = {"_ng_task_index": task, "_ng_rollout_index": repeat, "_ng_attempt_index": attempt}
    return {**keys, "failure_kind": "timeout", "server": "environment", "detail": "late", "time": attempt, **more}


def failure_row(**more: Any) -> FailureRow:
    """What a collector records of an attempt: it came too late."""
    where = {"task_index": 0, "rollout_index": 0, "attempt_index": 0, "agent_ref": {"name": "agent"}}
    what = {
        "failure_kind": "timeout",
        "server": "environment",
        "status": 504,
        "upstream_status": None,
        "detail": "late",
    }
    return FailureRow.model_validate({**where, **what, "terminal": False, "time": 0.0, "duration_s": 0.0, **more})


def partial(output: list[Json], **more: Any) -> Json:
    params = {"input": [{"role": "user", "content": "Play."}]}
    row = {"level": 3, "responses_create_params": params, "response": {"output": output}}
    return {"source": "agent", "stage": "tool", "server": "environment", "turn": 1, "row": row, **more}
