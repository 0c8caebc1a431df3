from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import pytest

from rollyard.services.datasets.tasks import Rollout, TaskFile
from rollyard.services.errors import OperatorError, RunError
from rollyard.services.types import Json


def row(text: str = "hi", **more: Any) -> Json:
    return {"responses_create_params": {"input": [{"role": "user", "content": text}], **more.pop("params", {})}, **more}


def written(root: Path, *rows: Json | bytes) -> Path:
    path = root / "rows.jsonl"
    path.write_bytes(b"".join((one if isinstance(one, bytes) else orjson.dumps(one)) + b"\n" for one in rows))
    return path


def tasks(root: Path, *rows: Json | bytes, agent: str | None = "player", limit: int | None = None) -> TaskFile:
    return TaskFile(written(root, *rows), agent=agent, limit=limit)


def refused(root: Path, *rows: Json | bytes, agent: str | None = "player") -> str:
    with pytest.raises(OperatorError) as raised:
        tasks(root, *rows, agent=agent)
    return str(raised.value)


class Endless(io.RawIOBase):
    """A file without an end, whose lines are made when they are asked for."""

    line = orjson.dumps(row()) + b"\n"
    taken = 0

    def open(self, mode: str = "rb") -> BinaryIO:
        return self  # type: ignore[return-value]

    def close(self) -> None:
        """It is opened again."""

    def __fspath__(self) -> str:
        raise NotImplementedError

    def seek(self, offset: int, whence: int = 0) -> int:
        return 0

    def read(self, size: int = -1) -> bytes:
        return self.line[:size]

    def readline(self, size: int | None = -1) -> bytes:
        Endless.taken += 1
        return self.line


def test_rows_are_read_as_they_are_asked_for() -> None:
    Endless.taken = 0
    file = TaskFile(Endless(), agent="player", limit=1000)
    surveyed = Endless.taken
    assert file.count == 1000 and surveyed <= 1001
    rollouts = file.rollouts(4)
    for _ in range(5):
        next(rollouts)
    assert Endless.taken - surveyed == 2


def test_every_repeat_of_a_row_comes_before_the_next_row(tmp_path: Path) -> None:
    found = [(one.task_index, one.rollout_index) for one in tasks(tmp_path, row("a"), row("b")).rollouts(3)]
    assert found == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_only_a_newline_ends_a_line(tmp_path: Path, character: str) -> None:
    raw = orjson.dumps(row("before|after")).replace(b"|", orjson.dumps(character)[1:-1])
    (only,) = tasks(tmp_path, raw).rollouts(1)
    assert only.row["responses_create_params"]["input"][0]["content"] == f"before{character}after"


def test_blank_lines_are_skipped_and_do_not_count(tmp_path: Path) -> None:
    file = tasks(tmp_path, b"", row("a"), b"  \t", b"\r", row("b"), b"")
    assert file.count == 2 and [one.task_index for one in file.rollouts(1)] == [0, 1]


def test_a_last_line_without_its_newline_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(orjson.dumps(row("a")) + b"\n" + orjson.dumps(row("b")))
    assert TaskFile(path, agent="player", limit=None).count == 2


def test_lines_that_end_as_on_windows_are_read(tmp_path: Path) -> None:
    assert tasks(tmp_path, orjson.dumps(row()) + b"\r").count == 1


@pytest.mark.parametrize("bad", [b"{", b"nonsense", b'{"a": NaN}', b"\xff", b"[1]", b"5"])
def test_a_bad_line_is_named_with_its_number_in_the_file(tmp_path: Path, bad: bytes) -> None:
    told = refused(tmp_path, row(), b"", bad)
    assert "rows.jsonl" in told and "line 3" in told


@pytest.mark.parametrize("bad", [{}, {"input": []}, {"responses_create_params": "x"}])
def test_a_row_without_a_request_is_named_with_what_it_has(tmp_path: Path, bad: Json) -> None:
    told = refused(tmp_path, b"", row(), bad)
    assert "line 3" in told and "input" in told


@pytest.mark.parametrize("own", [{}, {"responses_create_params": {}}])
def test_a_row_that_leaves_its_prompt_to_the_environment_gets_the_commands_parameters(
    tmp_path: Path, own: Json
) -> None:
    (rollout,) = tasks(tmp_path, {"question": "2 + 2?", **own}).rollouts(1)
    sent = orjson.loads(rollout.body({"temperature": 0.5}, seeded=False))
    assert (sent["question"], sent["responses_create_params"]) == ("2 + 2?", {"temperature": 0.5})


@pytest.mark.parametrize("bad", [5, "text", [1], {"extra_body": "no JSON"}, {"extra_body": "[1]"}, {"extra_body": 5}])
def test_a_row_whose_metadata_cannot_carry_a_seed_stops_no_other(tmp_path: Path, bad: Any) -> None:
    """Found when the file is read, or kept as it is; never an exception in the middle of a collection."""
    try:
        file = tasks(tmp_path, row(params={"metadata": bad}))
    except OperatorError as error:
        assert "line 1" in str(error) or "row 1" in str(error)
        return
    (only,) = file.rollouts(1)
    assert orjson.loads(only.body({}, seeded=True))


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    assert "no rows" in refused(tmp_path, b"", b"")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"nowhere\.jsonl.*No such file"):
        TaskFile(tmp_path / "nowhere.jsonl", agent="player", limit=None)


def test_a_folder_is_no_input_file(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="cannot be read"):
        TaskFile(tmp_path, agent="player", limit=None)


def test_a_rows_own_agent_wins(tmp_path: Path) -> None:
    file = tasks(tmp_path, row(agent_ref={"name": "own"}), row())
    assert [one.agent for one in file.rollouts(1)] == ["own", "player"] and file.agents == {"own", "player"}


def test_a_row_without_an_agent_is_refused_with_the_option_that_gives_one(tmp_path: Path) -> None:
    assert "+agent_name=" in refused(tmp_path, row(agent_ref={"name": "own"}), row(), agent=None)


def test_a_limit_takes_the_first_rows_and_looks_at_no_other(tmp_path: Path) -> None:
    file = tasks(tmp_path, row("a"), b"", row("b"), b"this is not read", limit=2)
    assert file.count == 2 and len(list(file.rollouts(2))) == 4


def test_the_digest_tells_inputs_apart_and_looks_only_at_rows_used(tmp_path: Path) -> None:
    one = tasks(tmp_path, row("a"), row("b"), limit=1).digest
    assert one == tasks(tmp_path, row("a"), row("c"), limit=1).digest
    assert one == tasks(tmp_path, b"", orjson.dumps(row("a")) + b"  ").digest
    assert one != tasks(tmp_path, row("b")).digest


def body(content: Json, params: Mapping[str, Any] | None = None, *, seeded: bool = False, repeat: int = 3) -> Json:
    read: Json = orjson.loads(Rollout(7, repeat, "player", content).body(params or {}, seeded=seeded))
    return read


def test_parameters_of_the_command_win_over_the_rows(tmp_path: Path) -> None:
    sent = body(row(params={"temperature": 0.1, "top_p": 0.9}), {"temperature": 0.8, "max_output_tokens": 5})
    params = sent["responses_create_params"]
    assert (params["temperature"], params["top_p"], params["max_output_tokens"]) == (0.8, 0.9, 5)
    assert params["input"] == row()["responses_create_params"]["input"]


def test_the_row_itself_is_not_changed() -> None:
    content = row(params={"metadata": {"a": "b"}})
    before = orjson.dumps(content)
    body(content, {"temperature": 1}, seeded=True)
    assert orjson.dumps(content) == before


def test_everything_else_of_a_row_is_sent_as_it_is() -> None:
    sent = body(row(level=[1, {"x": None}], note="√"))
    assert (sent["level"], sent["note"]) == ([1, {"x": None}], "√")


def test_a_body_is_marked_with_task_repeat_and_agent() -> None:
    sent = body(row(agent_ref={"name": "player"}))
    assert (sent["_ng_task_index"], sent["_ng_rollout_index"], sent["agent_ref"]["name"]) == (7, 3, "player")


def test_the_seed_goes_to_extra_body_and_keeps_what_is_there() -> None:
    metadata = {"team": "a", "extra_body": '{"top_k": 20, "seed": 99}'}
    sent = body(row(params={"metadata": metadata}), seeded=True)["responses_create_params"]["metadata"]
    assert sent["team"] == "a" and orjson.loads(sent["extra_body"]) == {"top_k": 20, "seed": 3}


def test_without_seeds_metadata_is_not_touched() -> None:
    assert "metadata" not in body(row())["responses_create_params"]


def edited(path: Path, before: bytes) -> None:
    path.write_bytes(before.replace(b"second", b"SECOND"))


def grown(path: Path, before: bytes) -> None:
    path.write_bytes(before + before.splitlines()[0] + b"\n")


def cut(path: Path, before: bytes) -> None:
    path.write_bytes(before[: before.index(b"\n", before.index(b"second")) + 1])


def reordered(path: Path, before: bytes) -> None:
    path.write_bytes(b"".join(before.splitlines(keepends=True)[::-1]))


def torn(path: Path, before: bytes) -> None:
    path.write_bytes(before[:-10])


@pytest.mark.parametrize(
    ("change", "told", "played"),
    [
        (edited, r"rows\.jsonl: line 2 changed", 1),
        (grown, r"rows\.jsonl: line 4 is new.*\+limit=3", 3),
        (cut, r"rows\.jsonl had 3 rows, and now ends after 2", 2),
        (reordered, r"rows\.jsonl: line 1 changed", 0),
        (torn, r"rows\.jsonl: line 3 changed", 2),
    ],
)
def test_a_row_that_is_not_as_it_was_read_at_first_is_named_and_not_played(
    tmp_path: Path, change: Callable[[Path, bytes], None], told: str, played: int
) -> None:
    file = tasks(tmp_path, row("first"), row("second"), row("third"))
    path = tmp_path / "rows.jsonl"
    change(path, path.read_bytes())
    found = []
    with pytest.raises(RunError, match=told):
        for one in file.rollouts(2):
            found.append(one.task_index)
    assert found == [index for index in range(played) for _ in range(2)]


def test_a_file_that_grows_behind_the_limit_is_played(tmp_path: Path) -> None:
    file = tasks(tmp_path, row("first"), row("second"), limit=2)
    path = tmp_path / "rows.jsonl"
    grown(path, path.read_bytes())
    assert len(list(file.rollouts(1))) == 2


def test_a_row_that_is_nested_too_deep_to_be_passed_on_is_named(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(240):
        deep = {"a": deep}
    raw = orjson.dumps(row())[:-1] + b', "deep": ' + b"[" * 400 + b"]" * 400 + b"}"
    for bad in (row(deep=deep), raw):
        assert "line 2: it is nested deeper than" in refused(tmp_path, row(), bad)


def test_a_pipe_is_no_input(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.jsonl")
    with pytest.raises(OperatorError, match="is a pipe"):
        TaskFile(tmp_path / "rows.jsonl", agent="player", limit=None)
