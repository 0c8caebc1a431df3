"""The rollout log of a training run, and the figures of an evaluation."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from rollyard.records.types import Json
from rollyard.resources_servers.gsm8k.evaluate import figures, write_rollout_log


def rollout(task: int, repeat: int, **fields: object) -> Json:
    return {
        "_ng_task_index": task,
        "_ng_rollout_index": repeat,
        "id": f"gsm8k_{task}",
        "responses_create_params": {"input": [{"role": "user", "content": "How many?"}]},
        "response": {
            "output": [{"type": "message", "content": [{"type": "output_text", "text": r"\boxed{18}"}]}],
            "usage": {"output_tokens": 7},
        },
        "reward": 1.1,
        "success": True,
        "parse_error": False,
        "extracted_answer": "18",
        "expected_answer": "18",
        "finish_reason": "answered",
        "timings": {"total_s": 0.5},
        **fields,
    }


def write(path: Path, *rows: Json) -> Path:
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def log_of(tmp_path: Path, *files: Path) -> list[Json]:
    write_rollout_log(list(files), tmp_path / "log.jsonl")
    return [orjson.loads(line) for line in (tmp_path / "log.jsonl").read_bytes().splitlines()]


def test_a_line_has_the_keys_of_the_original_log(tmp_path: Path) -> None:
    (line,) = log_of(tmp_path, write(tmp_path / "step_000003.jsonl", rollout(4, 1)))
    assert {*line} == {"id", "meta", "steps", "total_reward", "length", "duration_ns"}
    (step,) = line["steps"]
    assert {*step} == {"index", "prev_obs", "action", "next_obs", "reward", "truncated", "terminated", "info"}
    assert (line["id"], line["total_reward"], line["duration_ns"]) == ("step_000003-4-1", 1.1, 500_000_000)
    assert (step["prev_obs"], step["action"]) == ("How many?", r"\boxed{18}")
    assert (step["info"]["correct"], step["info"]["completion_length"]) == (True, 7)


def test_an_unreadable_answer_has_parse_error_instead_of_correct(tmp_path: Path) -> None:
    row = rollout(0, 0, parse_error=True, success=False, reward=-1.0, finish_reason="length")
    (line,) = log_of(tmp_path, write(tmp_path / "step_000001.jsonl", row))
    info = line["steps"][0]["info"]
    assert info["parse_error"] is True and "correct" not in info
    assert (line["steps"][0]["truncated"], line["steps"][0]["terminated"]) == (True, False)


def test_writing_it_again_repeats_no_line_and_the_incomplete_last_line_of_a_collection_is_left_out(
    tmp_path: Path,
) -> None:
    file = write(tmp_path / "step_000001.jsonl", rollout(0, 0), rollout(0, 1))
    file.write_bytes(file.read_bytes() + b'{"_ng_task')
    assert len(log_of(tmp_path, file)) == len(log_of(tmp_path, file)) == 2


Measured = tuple[str | None, bool, int | None]
"""Extracted answer, success, output tokens."""
ROWS: list[Measured] = [("18", True, 10), ("17", False, 10), (None, False, 10), (None, False, None)]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (ROWS, ("25.00%", "50.00%", "10.0", "30")),
        ([("1", False, None)], ("0.00%", "0.00%", "unknown", "0")),
        ([], ("0.00%", "0.00%", "unknown", "0")),
    ],
)
def test_figures_have_the_names_of_both_scripts_and_lengths_cover_the_rollouts_with_usage(
    rows: list[Measured], found: tuple[str, ...]
) -> None:
    measured = [
        {"response": {"output": [], "usage": tokens and {"output_tokens": tokens}}, "extracted_answer": answer}
        | {"success": success, "reward": 0.0}
        for answer, success, tokens in rows
    ]
    right, unread, length, total = found
    assert figures(measured) == {
        **dict.fromkeys(("accuracy", "correct_rate"), right),
        **dict.fromkeys(("parse_err_rate", "parse_error_rate"), unread),
        **dict.fromkeys(("avg_completion_length", "avg_completion_tokens"), length),
        "total_completion_tokens": total,
    }
