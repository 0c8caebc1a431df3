from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.optional import load, require


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
