"""Unpacking with tarfile's filter `data`, and in Python 3.11.0 to 3.11.3, which lack it."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from rollyard.launchers.sagemaker.source_bundle import unpack
from rollyard.records.errors import OperatorError


@pytest.fixture(params=["with the filter", "without the filter"], autouse=True)
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without the filter":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)


def bundle(*members: tarfile.TarInfo) -> io.BytesIO:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as packed:
        for member in members:
            packed.addfile(member, io.BytesIO(b"text") if member.isfile() else None)
    file.seek(0)
    return file


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, target, 0o755
    member.size = 4 if kind == tarfile.REGTYPE else 0
    return member


def test_files_folders_and_links_inside_are_unpacked(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    members = entry("a", tarfile.DIRTYPE), entry("a/train.py"), entry("a/link.py", tarfile.SYMTYPE, "train.py")
    unpack(bundle(*members, entry("hard.py", tarfile.LNKTYPE, "a/train.py")), folder)
    assert [(folder / name).read_text() for name in ("a/train.py", "a/link.py", "hard.py")] == ["text"] * 3


@pytest.mark.parametrize(
    "member",
    [
        entry("../outside"),
        entry("a/../../outside"),
        entry("link", tarfile.SYMTYPE, "../outside"),
        entry("link", tarfile.SYMTYPE, "/etc"),
        entry("link", tarfile.LNKTYPE, "../outside"),
        entry("device", tarfile.CHRTYPE),
    ],
    ids=lambda member: f"{member.name} -> {member.linkname}",
)
def test_an_entry_that_leads_out_is_refused(member: tarfile.TarInfo, tmp_path: Path) -> None:
    with pytest.raises((tarfile.TarError, OperatorError)):
        unpack(bundle(member), tmp_path / "code")
    assert not (tmp_path / "outside").exists()
