"""Each version of the weights has a folder of its own, which is complete or absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollyard.records.errors import RunError
from rollyard.training.weights.version_folders import VersionFolders


def save(folder: Path) -> None:
    (folder / "model.safetensors").write_text("weights")


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_a_version_gets_its_name_when_it_is_complete(tmp_path: Path) -> None:
    root = tmp_path / "weights"

    def watched(folder: Path) -> None:
        save(folder)
        assert not (root / "step_000001").exists()

    assert VersionFolders(root, keep=2).write("step_000001", watched) == root / "step_000001"
    assert names(root) == ["step_000001"]


def test_a_version_is_never_overwritten(tmp_path: Path) -> None:
    folders = VersionFolders(tmp_path, keep=2)
    folders.write("step_000001", save)
    with pytest.raises(RunError, match="step_000001 already"):
        folders.write("step_000001", lambda folder: (folder / "model.safetensors").touch())
    assert (tmp_path / "step_000001" / "model.safetensors").read_text() == "weights"


def test_a_failed_save_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    folders = VersionFolders(tmp_path, keep=2)

    def full_disk(folder: Path) -> None:
        save(folder)
        raise OSError(28, os.strerror(28))

    with pytest.raises(RunError, match=rf"step_000001: {os.strerror(28)}"):
        folders.write("step_000001", full_disk)
    assert names(tmp_path) == []
    folders.write("step_000001", save)


def test_what_a_killed_trainer_has_half_written_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".step_000001.partial").mkdir()
    folders = VersionFolders(tmp_path, keep=2)
    folders.prune(())
    assert names(tmp_path) == []


def test_the_newest_versions_and_those_in_use_are_kept(tmp_path: Path) -> None:
    folders = VersionFolders(tmp_path, keep=2)
    for step in range(1, 6):
        os.utime(folders.write(f"step_{step:06d}", save), (step, step))
    folders.prune({tmp_path / "step_000001"})
    assert names(tmp_path) == ["step_000001", "step_000004", "step_000005"]
