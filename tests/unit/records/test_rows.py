"""Rows of a file: common variants are read; an invalid row is reported with its line and how to fix it."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from rollyard.records.rows import id_of_row, row_at, rows_of
from tests.unit.services.datasets.files import row as make_row

ONE, TWO = orjson.dumps(make_row("1", id=1)), orjson.dumps(make_row("2", id=2))


@pytest.mark.parametrize(
    "content",
    [
        ONE + b"\n" + TWO + b"\n",
        ONE + b"\n" + TWO,
        ONE + b"\r\n" + TWO + b"\r\n\r\n",
        b"\n \n" + ONE + b"\n\n" + TWO + b"\n\t\n",
        b"\xef\xbb\xbf" + ONE + b"\n\xef\xbb\xbf" + TWO + b"\n",
    ],
    ids=["plain", "no last line end", "CRLF", "blank lines", "byte order marks"],
)
def test_common_line_formats_are_read_and_can_be_located(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    found = list(rows_of(path))
    assert [row.problem for row in found] == ["", ""]
    assert [row_at(path, row.offset, row.line_hash) for row in found] == [orjson.loads(ONE), orjson.loads(TWO)]


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        (ONE + b"\n" + TWO[:30], 2, ["31", "truncated"]),
        (b'{"x": NaN}\n' + ONE, 1, ["character 7"]),
        (ONE.decode().encode("utf-16"), 1, ["iconv -f UTF-16 -t UTF-8"]),
        (ONE + b"\n" + b"\0" * 9 + b"\n", 2, ["zero bytes"]),
        (b'{"x": "caf\xe9"}\n', 1, ["UTF-8", "0xe9 at 11"]),
        (orjson.dumps([make_row("1"), make_row("2")], option=orjson.OPT_INDENT_2), 1, ["jq -c"]),
        (ONE + b"\n[1]\n", 2, ["list", "object"]),
        (ONE + b"\n\nnull\n", 3, ["null", "object"]),
        (b'"text"\n', 1, ["string", "object"]),
        (b'{"messages": []}\n', 1, ["messages", "responses_create_params", "`input`"]),
        (b"{}\n", 1, ["no keys", "responses_create_params", "`input`"]),
        (b'{"failure_kind": "timeout"}\n', 1, ["failed attempt"]),
        (b'{"responses_create_params": null}\n', 1, ["responses_create_params", "`input`"]),
        (b'{"responses_create_params": {"input": 3}}\n', 1, ["responses_create_params", "`input`"]),
        (orjson.dumps({"responses_create_params": {"input": [{}, 3]}}), 1, ["input[1] is a number"]),
    ],
    ids=str,
)
def test_an_invalid_row_is_reported_with_its_line_and_reason(
    tmp_path: Path, content: bytes, line: int, words: list[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    found = next(row for row in rows_of(path) if row.problem)
    assert found.line == line
    assert [word for word in words if word not in found.problem] == []


def test_an_id_must_be_text_or_an_integer() -> None:
    assert id_of_row({"task_id": {"of": "mine"}, "id": 7}) == "7"
    assert id_of_row({"id": ["a"]}) is None and id_of_row({"id": True}) is None
