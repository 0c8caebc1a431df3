"""Values of environment variables, and of the files that they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.variables import variable


def test_a_variable_is_its_value_or_the_line_in_its_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from the file\n")
    named = {"TOKEN_FILE": str(file)}
    assert variable(named, "TOKEN") == "from the file"
    assert variable({**named, "TOKEN": "own"}, "TOKEN") == "own"
    assert variable({**named, "TOKEN": ""}, "TOKEN") == "from the file"
    assert variable({"TOKEN_FILE": ""}, "TOKEN") is None


def test_the_byte_order_mark_of_a_file_is_not_part_of_its_value(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from the file\n", encoding="utf-8-sig")
    assert variable({"TOKEN_FILE": str(file)}, "TOKEN") == "from the file"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "contains 0 lines"),
        (b" \n", "contains an empty line"),
        (b"one\ntwo\n", "contains 2 lines"),
        (b"\xff", "is not UTF-8"),
    ],
)
def test_a_file_without_exactly_one_value_is_refused_and_its_content_is_not_shown(
    tmp_path: Path, content: bytes | None, found: str
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(OperatorError) as refused:
        variable({"TOKEN_FILE": str(file)}, "TOKEN")
    assert str(refused.value).startswith(f"TOKEN_FILE={file} {found}; expected a file with the value of TOKEN")


def test_a_folder_which_docker_makes_where_a_file_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="cannot be read: Is a directory"):
        variable({"TOKEN_FILE": str(tmp_path)}, "TOKEN")
