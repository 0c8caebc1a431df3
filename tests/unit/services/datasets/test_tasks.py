from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.types import Json
from rollyard.services.datasets.mixture import Rollout, TaskFile
from tests.unit.services.datasets.files import write_rows


def row(text: str = "hi", **more: Any) -> Json:
    return {"responses_create_params": {"input": [{"role": "user", "content": text}], **more.pop("params", {})}, **more}


def tasks(root: Path, *rows: Json | bytes, agent: str | None = "agent", limit: int | None = None) -> TaskFile:
    return TaskFile(write_rows(root / "rows.jsonl", rows), agent=agent, limit=limit)


def error_message(root: Path, *rows: Json | bytes, agent: str | None = "agent") -> str:
    with pytest.raises(OperatorError) as raised:
        tasks(root, *rows, agent=agent)
    return str(raised.value)


def test_every_repeat_of_a_row_comes_before_the_next_row(tmp_path: Path) -> None:
    found = [(rollout.task_index, rollout.rollout_index) for rollout in tasks(tmp_path, row("a"), row("b")).rollouts(3)]
    assert found == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize("own", [{}, {"responses_create_params": {}}])
def test_a_row_without_a_prompt_gets_the_parameters_of_the_command(tmp_path: Path, own: Json) -> None:
    (rollout,) = tasks(tmp_path, {"question": "2 + 2?", **own}).rollouts(1)
    sent = orjson.loads(rollout.body({"temperature": 0.5}, seeded=False))
    assert (sent["question"], sent["responses_create_params"]) == ("2 + 2?", {"temperature": 0.5})


def test_a_file_without_rows_is_error_message(tmp_path: Path) -> None:
    assert "no rows" in error_message(tmp_path, b"", b"")


def test_a_rows_own_agent_takes_precedence(tmp_path: Path) -> None:
    file = tasks(tmp_path, row(agent_ref={"name": "own"}), row())
    assert [rollout.agent for rollout in file.rollouts(1)] == ["own", "agent"] and file.agents == {"own", "agent"}


def test_a_row_without_an_agent_is_rejected_with_the_option_that_sets_one(tmp_path: Path) -> None:
    assert "--agent-name" in error_message(tmp_path, row(agent_ref={"name": "own"}), row(), agent=None)


def test_a_limit_takes_the_first_rows_and_checks_only_those(tmp_path: Path) -> None:
    file = tasks(tmp_path, row("a"), b"", row("b"), b"this is not read", limit=2)
    assert file.count == 2 and len(list(file.rollouts(2))) == 4


def test_the_digest_depends_only_on_the_rows_used(tmp_path: Path) -> None:
    digest = tasks(tmp_path, row("a"), row("b"), limit=1).digest
    assert digest == tasks(tmp_path, row("a"), row("c"), limit=1).digest
    assert digest == tasks(tmp_path, b"", orjson.dumps(row("a")) + b"  ").digest
    assert digest != tasks(tmp_path, row("b")).digest


def body(content: Json, params: Mapping[str, Any] | None = None, *, seeded: bool = False, repeat: int = 3) -> Json:
    read: Json = orjson.loads(Rollout(7, repeat, "agent", content).body(params or {}, seeded=seeded))
    return read


def test_parameters_of_the_command_override_those_of_the_row(tmp_path: Path) -> None:
    sent = body(row(params={"temperature": 0.1, "top_p": 0.9}), {"temperature": 0.8, "max_output_tokens": 5})
    params = sent["responses_create_params"]
    assert (params["temperature"], params["top_p"], params["max_output_tokens"]) == (0.8, 0.9, 5)
    assert params["input"] == row()["responses_create_params"]["input"]


def test_the_row_itself_is_not_changed() -> None:
    content = row(params={"metadata": {"a": "b"}})
    before = orjson.dumps(content)
    body(content, {"temperature": 1}, seeded=True)
    assert orjson.dumps(content) == before


def test_a_request_body_names_task_repeat_and_agent() -> None:
    sent = body(row(agent_ref={"name": "agent"}))
    assert (sent["_ng_task_index"], sent["_ng_rollout_index"], sent["agent_ref"]["name"]) == (7, 3, "agent")


def test_the_seed_goes_to_extra_body_and_keeps_other_keys() -> None:
    metadata = {"team": "a", "extra_body": '{"top_k": 20, "seed": 99}'}
    sent = body(row(params={"metadata": metadata}), seeded=True)["responses_create_params"]["metadata"]
    assert sent["team"] == "a" and orjson.loads(sent["extra_body"]) == {"top_k": 20, "seed": 3}


@pytest.mark.parametrize(
    ("change", "message", "played"),
    [
        (lambda before: before.replace(b"second", b"SECOND"), r"rows\.jsonl: line 2 changed", 1),
        (lambda before: before + before.splitlines()[0] + b"\n", r"rows\.jsonl: line 4 .*--limit 3", 3),
        (lambda before: b"".join(before.splitlines(keepends=True)[:2]), r"rows\.jsonl .* 3 rows.* 2", 2),
        (lambda before: b"".join(before.splitlines(keepends=True)[::-1]), r"rows\.jsonl: line 1 changed", 0),
        (lambda before: before[:-10], r"rows\.jsonl: line 3 changed", 2),
    ],
    ids=["edited", "appended to", "without its last row", "reversed", "truncated"],
)
def test_a_row_that_changed_since_the_first_read_is_named_and_not_played(
    tmp_path: Path, change: Callable[[bytes], bytes], message: str, played: int
) -> None:
    file = tasks(tmp_path, row("first"), row("second"), row("third"))
    path = tmp_path / "rows.jsonl"
    path.write_bytes(change(path.read_bytes()))
    found = []
    with pytest.raises(RunError, match=message):
        for rollout in file.rollouts(2):
            found.append(rollout.task_index)
    assert found == [index for index in range(played) for _ in range(2)]


def test_a_row_that_is_nested_too_deeply_is_named(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(240):
        deep = {"a": deep}
    raw = orjson.dumps(row())[:-1] + b', "deep": ' + b"[" * 400 + b"]" * 400 + b"}"
    for bad in (row(deep=deep), raw):
        assert "line 2: it is nested" in error_message(tmp_path, row(), bad)


def test_a_pipe_is_rejected_as_input(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.jsonl")
    with pytest.raises(OperatorError, match="is a pipe"):
        TaskFile(tmp_path / "rows.jsonl", agent="agent", limit=None)
