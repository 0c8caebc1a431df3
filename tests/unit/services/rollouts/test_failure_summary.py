"""The most frequent failure, which ng_eval and ng_collect_rollouts print."""

from __future__ import annotations

from pathlib import Path

import orjson

from rollyard.services.rollouts.store import most_frequent_failure


def write(path: Path, *rows: tuple[float, str]) -> Path:
    lines = [
        orjson.dumps({"failure_kind": "upstream_refused", "server": "policy_model", "detail": detail, "time": time})
        for time, detail in rows
    ]
    path.write_bytes(b"\n".join([*lines, b"torn"]))
    return path


def test_failures_that_differ_in_numbers_and_ids_are_one_cause(tmp_path: Path) -> None:
    path = write(tmp_path / "f.jsonl", (1, "no model 0a1b2c3d"), (2, "timeout"), (3, "no model ffffffff11"))
    expected = "2 of 3 failed attempts: upstream_refused at policy_model: no model 0a1b2c3d"
    assert most_frequent_failure(path) == expected


def test_earlier_failures_are_not_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "f.jsonl", (1, "old"), (2, "old"), (5, "new"))
    assert most_frequent_failure(path, since=3).endswith("new")
