"""iter_jsonl, the only reader of JSON Lines, and the line splitting underneath."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.jsonl import BadLine, Lines, hand_over, iter_jsonl, lenient, line_at, refuse, skip, strict

CONTENT = b'{"a": 1}\n\n[1]\n{"a": 2}\nbroken\n{"a"'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "x.jsonl").write_bytes(CONTENT)
    return tmp_path / "x.jsonl"


def test_line_numbers_count_blank_lines_and_offsets_count_bytes(path: Path) -> None:
    found = list(iter_jsonl(path, skip))
    assert [(line.number, line.offset, line.line) for line in found] == [(1, 0, b'{"a": 1}\n'), (4, 14, b'{"a": 2}\n')]


def test_only_the_last_line_can_be_truncated(path: Path) -> None:
    bad = [item for item in iter_jsonl(path, hand_over) if isinstance(item, BadLine)]
    assert [line.torn for line in bad] == [False, False, True]
    assert ["truncated" in line.problem for line in bad] == [False, False, True]


def test_reject_raises_an_error_with_file_line_finding_and_remedy(path: Path) -> None:
    with pytest.raises(RunError, match=r"x\.jsonl: line 3 .*list.*Delete it"):
        list(iter_jsonl(path, refuse(path, "Delete it")))
    with pytest.raises(OperatorError, match="line 3"):
        list(iter_jsonl(path, refuse(path, error=OperatorError)))


def test_lenient_parsing_accepts_nan_and_strict_parsing_rejects_it(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'{"a": NaN}\n{"a": "\\ud800"}\n')
    assert len(list(iter_jsonl(tmp_path / "x.jsonl", skip, parse=lenient))) == 2
    rejected, kept = iter_jsonl(tmp_path / "x.jsonl", hand_over, parse=strict)
    assert "NaN" in rejected[3] and kept[3] == {"a": "\ud800"}


@pytest.mark.parametrize(
    "line", [b"[" * 200_000 + b"\n", b'{"a": ' + b"9" * 5000 + b"}\n", b"\xff\n", b"\0\0\n", b"nul\n"]
)
@pytest.mark.parametrize("parse", [lenient, strict])
def test_only_on_error_decides_whether_a_bad_line_raises(tmp_path: Path, line: bytes, parse: object) -> None:
    (tmp_path / "x.jsonl").write_bytes(line + b'{"a": 1}\n')
    first, second = iter_jsonl(tmp_path / "x.jsonl", hand_over, parse=parse)  # type: ignore[call-overload]
    assert isinstance(first, BadLine) and first.problem[0] in " :" and second.value == {"a": 1}


def test_parts_of_a_file_of_any_size_share_its_lines_without_loss_or_repetition(path: Path) -> None:
    whole = list(Lines(path))
    assert b"".join(line for _, line in whole) == CONTENT
    assert [line_at(path, offset) for offset, _ in whole] == [line for _, line in whole]
    for part in range(1, len(CONTENT) + 2):
        found = [pair for start in range(0, len(CONTENT), part) for pair in Lines(path, start, start + part)]
        assert found == whole, part


def test_a_truncated_last_line_is_skipped_until_it_is_complete(path: Path) -> None:
    with path.open("rb") as file, path.open("ab", buffering=0) as writer:
        lines = Lines(file, whole=True)
        assert [line for _, line in lines][-1] == b"broken\n"
        writer.write(b": 3}\n")
        rest = Lines(file, lines.end, whole=True)
        assert list(rest) == [(lines.end, b'{"a": 3}\n')]
        assert rest.end == path.stat().st_size


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes('{"a": "\u2028\u0085\\r"}\r\n{"b": 1}'.encode())
    assert [line.value for line in iter_jsonl(tmp_path / "x.jsonl", skip)] == [{"a": "\u2028\u0085\r"}, {"b": 1}]
