"""The rollouts of a training run as one file with the keys of ludic's rollout log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson

from rollyard.records.io.jsonl import iter_jsonl, refuse, replace
from rollyard.records.io.lines import Lines
from rollyard.records.rollouts.rewards import is_measured
from rollyard.records.types import Json
from rollyard.resources_servers.gsm8k.reducers import completion_tokens


def write_rollout_log(files: list[Path], output: Path) -> int:
    """Write one line per rollout of `files`, and return their number. An existing file is replaced, so that a repeated
    command does not repeat lines.
    """
    count = 0

    def lines() -> Iterator[bytes]:
        nonlocal count
        for path in files:
            # The last line of a file that is still being written may be incomplete.
            for line in iter_jsonl(Lines(path, whole=True), refuse(path)):
                if not is_measured(line.value):
                    continue
                count += 1
                yield orjson.dumps(_record(path.stem, line.value)) + b"\n"

    replace(output, lines())
    return count


def response_text(row: Json) -> str:
    """Return the text that the policy wrote."""
    parts = [part for item in row["response"]["output"] if item.get("type") == "message" for part in item["content"]]
    return "".join(part.get("text", "") for part in parts)


def question_text(row: Json) -> str:
    """Return the last message that the policy read."""
    items = row["responses_create_params"]["input"]
    return str(items if isinstance(items, str) else items[-1]["content"])


def _record(step: str, row: Json) -> Json:
    duration_s = (row.get("timings") or {}).get("total_s")
    info: Json = {
        "parsed_answer": row.get("extracted_answer"),
        "target_answer": row.get("expected_answer"),
        "completion_length": completion_tokens(row),
        "finish_reason": row.get("finish_reason"),
        "reward_components": row.get("reward_components"),
    }
    info |= {"parse_error": True} if row.get("parse_error") else {"correct": row.get("success") is True}
    truncated = row.get("finish_reason") == "length"
    return {
        "id": f"{step}-{row['_ng_task_index']}-{row['_ng_rollout_index']}",
        "meta": {"train_step": step, "question_id": row.get("id"), "task_key": row.get("_ng_task_key")},
        "steps": [
            {
                "index": 0,
                "prev_obs": question_text(row),
                "action": response_text(row),
                "next_obs": None,
                "reward": row["reward"],
                "truncated": truncated,
                "terminated": not truncated,
                "info": info,
            }
        ],
        "total_reward": row["reward"],
        "length": 1,
        "duration_ns": None if duration_s is None else round(duration_s * 1e9),
    }
