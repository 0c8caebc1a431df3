"""Checks that decide whether a fault held: no rollout lost, duplicated or invented, and a clear message."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import orjson

LAST_WORD = "That is as far as I go."
CRASHES = re.compile(r"a bug of ours|internal error|Traceback \(most recent", re.IGNORECASE)
RAW = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Control characters that a terminal interprets."""


class Broken(AssertionError):
    """A check failed."""


class NotInjected(Exception):
    """The fault did not take effect, so nothing was tested: never counted as held."""


def hold(condition: object, message: str) -> None:
    if not condition:
        raise Broken(message)


def injected(condition: object, message: str) -> None:
    if not condition:
        raise NotInjected(message)


def no_crash(output: str) -> None:
    """Raise Broken if a command ended with a traceback or an internal error instead of a message."""
    if found := CRASHES.search(output):
        at = output.rfind("\n", 0, found.start()) + 1
        raise Broken(f"the command crashed: {output[at : at + 300].strip()}")


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON Lines file, empty if it does not exist. Raises Broken for a line that is not JSON."""
    try:
        return [orjson.loads(line) for line in path.read_bytes().split(b"\n") if line] if path.exists() else []
    except orjson.JSONDecodeError as error:
        raise Broken(f"{path.name} contains a line that is not JSON: {error}") from error


def wrong_with(row: dict[str, Any], moves: int) -> str:
    """What is wrong with a rollout of the witness environment; empty if it matches the script."""
    if row.get("reward") != 1.0 or isinstance(row["reward"], bool):
        return f"reward {row.get('reward')!r}, {row.get('wrong')!r}"
    if row.get("finish_reason") != "answered":
        return f"finish_reason {row.get('finish_reason')!r}"
    output = row["response"]["output"]
    calls = sum(item["type"] == "function_call" for item in output)
    if calls != moves + 1:
        return f"{calls} tool calls instead of {moves + 1}"
    last = output[-1]
    if last["type"] != "message" or last["content"][0]["text"] != LAST_WORD:
        return f"it ends with {str(last)[:200]}"
    return ""


def incomplete(output: Path, tasks: int, repeats: int, moves: int = 4) -> str:
    """Why `output` differs from that of an uninterrupted run; empty if it does not."""
    if not output.exists():
        return f"{output.name} does not exist"
    try:
        rows = read(output)
    except Broken as broken:
        return str(broken)
    if odd := [row.get("_ng_task_index") for row in rows if type(row.get("_ng_task_index")) is not int]:
        return f"task index {odd[0]!r}"
    keys = Counter((row.get("_ng_task_index"), row.get("_ng_rollout_index")) for row in rows)
    expected = {(task, repeat) for task in range(tasks) for repeat in range(repeats)}
    found = [
        (len(expected - keys.keys()), "missing"),
        (len(keys.keys() - expected), "foreign"),
        (sum(count > 1 for count in keys.values()), "twice"),
    ]
    if any(count for count, _ in found):
        return ", ".join(f"{count} {what}" for count, what in found if count) + f" of {len(expected)}"
    for row in rows:
        if row["id"] != row["_ng_task_index"]:
            return f"task {row['_ng_task_index']} holds row {row['id']}"
        if wrong := wrong_with(row, moves):
            return f"task {row['_ng_task_index']}, repeat {row['_ng_rollout_index']}: {wrong}"
    return ""


def whole(output: Path, tasks: int, repeats: int, moves: int = 4) -> None:
    """Check that each expected rollout occurs once and matches the script, and that no failed attempt has a reward."""
    if why := incomplete(output, tasks, repeats, moves):
        raise Broken(why)
    failures = read(output.with_name(f"{output.stem}_failures.jsonl"))
    hold(not any("reward" in row for row in failures), "a failed attempt has a reward")
