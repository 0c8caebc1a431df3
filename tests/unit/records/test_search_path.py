from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.search_path import find_file, resolve


def test_a_file_is_found_in_the_first_folder_that_has_it(tmp_path: Path) -> None:
    for folder in ("mine", "installed"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rows.jsonl").touch()
    (tmp_path / "installed/more.jsonl").touch()
    search_path = [tmp_path / "mine", tmp_path / "installed"]
    assert find_file("rows.jsonl", search_path) == tmp_path / "mine/rows.jsonl"
    assert resolve(Path("more.jsonl"), search_path) == tmp_path / "installed/more.jsonl"


def test_a_missing_file_is_named_with_the_searched_folders(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=rf"rows\.jsonl .*{tmp_path}\b"):
        resolve(Path("rows.jsonl"), [tmp_path])


def test_a_folder_without_read_permission_is_an_operator_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))  # CI runs as root, which no permission stops

    monkeypatch.setattr(Path, "is_file", deny)
    with pytest.raises(OperatorError, match=r"rows\.jsonl .*Permission denied"):
        resolve(Path("rows.jsonl"), [tmp_path])
