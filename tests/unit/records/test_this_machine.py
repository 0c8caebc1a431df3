"""What a machine has: GPUs, packages and files on the search path."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rollyard.records.data_files import find_file, resolve
from rollyard.records.errors import OperatorError
from rollyard.records.gpus import present_gpus
from rollyard.records.optional import load, require


@pytest.mark.parametrize("device", ["nvidia0", "nvidiactl", "nvhost-gpu", "dxg", "kfd"])
def test_gpus_are_those_of_the_variable_if_the_host_has_a_driver(device: str, tmp_path: Path) -> None:
    (tmp_path / device).touch()
    assert present_gpus({"CUDA_VISIBLE_DEVICES": "1, 3"}, tmp_path) == ["1", "3"]


def test_a_variable_makes_no_gpu(tmp_path: Path) -> None:
    (tmp_path / "nvme0").touch()
    assert present_gpus({"CUDA_VISIBLE_DEVICES": "1"}, tmp_path) is None


@pytest.mark.parametrize("import_package", [require, load])
def test_a_missing_package_is_named_with_its_extra_and_the_install_command(
    import_package: Callable[[str, str, str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)  # as if it were not installed
    with pytest.raises(OperatorError) as raised:
        import_package("boto3", "aws", "s3://bucket/rows.jsonl")
    message = str(raised.value)
    assert message.startswith("s3://bucket/rows.jsonl ") and "boto3" in message
    assert message.endswith(f"{sys.executable} -m pip install 'rollyard[aws]'")


def test_a_package_whose_import_is_blocked_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blocked:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            if name == "boto3":
                raise ModuleNotFoundError(name)

    monkeypatch.delitem(sys.modules, "boto3", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Blocked, *sys.meta_path])
    with pytest.raises(OperatorError, match="is not installed"):
        require("boto3", "aws", "s3://bucket/rows.jsonl")


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
