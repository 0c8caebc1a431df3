"""What decides whether a fault was borne: nothing lost, nothing twice, nothing invented, and the command says so."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import orjson

LAST_WORD = "That is as far as I go."
CRASHES = re.compile(r"a bug of ours|internal error|Traceback \(most recent", re.IGNORECASE)
RAW = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""What a terminal would act upon."""


class Broken(AssertionError):
    """The fault broke through."""


class NotInjected(Exception):
    """The fault did not take effect, so that nothing was tried: never counted as held."""


def hold(true: object, what: str) -> None:
    """Raise Broken, saying what was found, unless `true`."""
    if not true:
        raise Broken(what)


def injected(true: object, what: str) -> None:
    """Raise NotInjected, saying what is missing, unless `true`."""
    if not true:
        raise NotInjected(what)


def no_crash(said: str) -> None:
    """A command may refuse, in words; it may not fall over."""
    if found := CRASHES.search(said):
        at = said.rfind("\n", 0, found.start()) + 1
        raise Broken(f"the command fell over: {said[at : at + 300].strip()}")


def read(path: Path) -> list[dict[str, Any]]:
    """Every line of a JSON Lines file; none where it is missing. Raises Broken for one that is not JSON."""
    try:
        return [orjson.loads(line) for line in path.read_bytes().split(b"\n") if line] if path.exists() else []
    except orjson.JSONDecodeError as error:
        raise Broken(f"{path.name} holds a line that is not JSON: {error}") from error


def wrong_with(row: dict[str, Any], moves: int) -> str:
    """What is wrong with one rollout of the witness environment; empty when it is as the script makes it."""
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
    """Why `output` is not exactly what an unbroken run writes; empty when it is."""
    if not output.exists():
        return f"{output.name} is not there"
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
    """Every expected rollout once, each as the script makes it; no failed attempt has a reward."""
    if why := incomplete(output, tasks, repeats, moves):
        raise Broken(why)
    failures = read(output.with_name(f"{output.stem}_failures.jsonl"))
    hold(not any("reward" in row for row in failures), "a failed attempt has a reward")
