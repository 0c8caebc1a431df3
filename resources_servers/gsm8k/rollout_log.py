"""The rollouts of a run under the keys of ludic's rollout log, and the figures of an evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import orjson

from rollyard.records.jsonl import Lines, iter_jsonl, refuse, replace
from rollyard.records.rewards import is_measured
from rollyard.records.types import Json


def write_rollout_log(files: list[Path], output: Path) -> int:
    """Write one line per rollout of `files`, replacing `output`, and return their number."""
    count = 0

    def lines() -> Iterator[bytes]:
        nonlocal count
        for path in files:
            for row in measured_rows(path):
                count += 1
                yield orjson.dumps(_record(path.stem, row)) + b"\n"

    replace(output, lines())
    return count


def measured_rows(path: Path) -> Iterator[Json]:
    """Yield the rollouts with a reward. The last line of a file that is still being written may be incomplete."""
    for line in iter_jsonl(Lines(path, whole=True), refuse(path)):
        if is_measured(line.value):
            yield line.value


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


def figures(rows: Iterable[Json]) -> dict[str, str]:
    """Return the figures of the rollout rows by name: shares of all rollouts, and lengths in tokens.

    The names are those of this project's and of ludic's scripts.
    """
    count = correct = unreadable = 0
    lengths: list[int] = []
    for row in rows:
        count += 1
        correct += row.get("success") is True
        unreadable += bool(row.get("parse_error", row.get("extracted_answer") is None))
        tokens = completion_tokens(row)
        if tokens is not None:
            lengths.append(tokens)
    right, unread = (f"{100 * part / max(count, 1):.2f}%" for part in (correct, unreadable))
    length = f"{sum(lengths) / len(lengths):.1f}" if lengths else "unknown"
    return {
        "accuracy": right,
        "correct_rate": right,
        "parse_err_rate": unread,
        "parse_error_rate": unread,
        "avg_completion_length": length,
        "avg_completion_tokens": length,
        "total_completion_tokens": str(sum(lengths)),
    }


def completion_tokens(row: Json) -> int | None:
    """Return the number of tokens that the policy generated in a rollout."""
    usage = row["response"].get("usage") or {}
    tokens = usage.get("output_tokens")
    return tokens if isinstance(tokens, int) else None
