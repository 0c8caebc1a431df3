"""The rollouts of a training run as one file with the keys of ludic's rollout log, and the figures of an
evaluation: accuracy, unreadable answers and completion lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import orjson

from rollyard.records.jsonl import Lines, iter_jsonl, refuse, replace
from rollyard.records.rewards import is_measured
from rollyard.records.types import Json, Record


def write_rollout_log(files: list[Path], output: Path) -> int:
    """Write one line per rollout of `files`, replacing `output`, and return their number."""
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


class Gsm8kFigures(Record):
    """The figures over all rollouts. Rates are shares from 0 to 1, lengths are in tokens."""

    rollouts: int
    correct_rate: float
    """Share of the rollouts with the correct number."""
    parse_err_rate: float
    """Share of the rollouts from which no number could be extracted."""
    avg_completion_length: float | None
    """Mean number of generated tokens; None if the endpoint does not report usage."""
    total_completion_tokens: int

    def lines(self) -> list[str]:
        """Return one line per figure. `accuracy` and the names below it are aliases that other scripts read."""
        length = "unknown" if self.avg_completion_length is None else f"{self.avg_completion_length:.1f}"
        return [
            f"accuracy: {100 * self.correct_rate:.2f}%",
            f"correct_rate: {100 * self.correct_rate:.2f}%",
            f"parse_err_rate: {100 * self.parse_err_rate:.2f}%",
            f"parse_error_rate: {100 * self.parse_err_rate:.2f}%",
            f"avg_completion_length: {length}",
            f"avg_completion_tokens: {length}",
            f"total_completion_tokens: {self.total_completion_tokens}",
        ]


def reduce_rollouts(rows: Iterable[Json]) -> Gsm8kFigures:
    """Return the figures of the rollout rows."""
    count = correct = unreadable = 0
    lengths: list[int] = []
    for row in rows:
        count += 1
        correct += row.get("success") is True
        unreadable += bool(row.get("parse_error", row.get("extracted_answer") is None))
        tokens = completion_tokens(row)
        if tokens is not None:
            lengths.append(tokens)
    return Gsm8kFigures(
        rollouts=count,
        correct_rate=correct / count if count else 0.0,
        parse_err_rate=unreadable / count if count else 0.0,
        avg_completion_length=sum(lengths) / len(lengths) if lengths else None,
        total_completion_tokens=sum(lengths),
    )


def completion_tokens(row: Json) -> int | None:
    """Return the number of tokens that the policy generated in a rollout."""
    usage = row["response"].get("usage") or {}
    tokens = usage.get("output_tokens")
    return tokens if isinstance(tokens, int) else None
