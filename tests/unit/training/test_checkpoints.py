"""Checkpoints are complete or not used."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from rollyard.records.errors import RunError
from rollyard.training.checkpoints import MANIFEST, Checkpoints, TrainingCheckpoint


class Run:
    def __init__(self, root: Path) -> None:
        self.lines: list[str] = []
        self.root = root / "checkpoints"
        self.checkpoints = Checkpoints(self.root, keep=2, print_line=self.lines.append)

    def save(self, step: int) -> TrainingCheckpoint:
        folder = self.checkpoints.begin(step)
        (folder / "shards").mkdir()
        (folder / "shards" / "0.bin").write_bytes(b"weights of %d" % step)
        (folder / "optimizer.pt").write_bytes(b"moments")
        return self.checkpoints.commit(step, f"v{step}", {"epoch": 0, "index": step})

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.root.iterdir())


def test_the_newest_stay_on_disk_with_step_version_and_position_and_latest_json_names_the_last(tmp_path: Path) -> None:
    run = Run(tmp_path)
    saved = [run.save(step) for step in (8, 9, 10)]
    assert run.checkpoints.newest() == saved[2]
    assert (saved[2].step, saved[2].version, saved[2].position) == (10, "v10", {"epoch": 0, "index": 10})
    assert run.names == ["latest.json", "step_000009", "step_000010"]
    assert orjson.loads((run.root / "latest.json").read_bytes()) == {"last_checkpoint": "step_000010", "step": 10}


def test_one_that_is_being_written_is_neither_used_nor_kept(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(1)
    (run.checkpoints.begin(2) / "optimizer.pt").write_bytes(b"half")
    newest = Run(tmp_path).checkpoints.newest()
    assert newest is not None and newest.step == 1
    assert not list(run.checkpoints.begin(2).iterdir()), "writing starts with an empty folder"
    run.save(3)
    assert run.names == ["latest.json", "step_000001", "step_000003"]


DAMAGES = {
    "optimizer.pt is missing": lambda folder: (folder / "optimizer.pt").unlink(),
    "shards/0.bin is not what was written": lambda folder: (folder / "shards" / "0.bin").write_bytes(b"weights of X"),
    "optimizer.pt is not what was written": lambda folder: (folder / "optimizer.pt").write_bytes(b"momen"),
    f"{MANIFEST} is missing": lambda folder: (folder / MANIFEST).unlink(),
    f"{MANIFEST} is invalid": lambda folder: (folder / MANIFEST).write_bytes(b"{"),
    "it is that of step 1": lambda folder: (folder / MANIFEST).write_bytes(
        orjson.dumps(orjson.loads((folder / MANIFEST).read_bytes()) | {"step": 1})
    ),
}


@pytest.mark.parametrize("problem", DAMAGES)
def test_a_damaged_one_is_set_aside_with_its_problem_and_the_previous_one_used(problem: str, tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(1), run.save(2)
    DAMAGES[problem](run.root / "step_000002")
    newest = run.checkpoints.newest()
    assert newest is not None and newest.step == 1
    [line] = run.lines
    assert f"step_000002 is damaged ({problem}" in line and "renamed to step_000002.incomplete" in line
    run.save(2)
    assert run.names == ["latest.json", "step_000001", "step_000002", "step_000002.incomplete"]


def test_a_checkpoint_of_a_newer_format_is_an_error_and_stays(tmp_path: Path) -> None:
    run = Run(tmp_path)
    manifest = run.save(1).folder / MANIFEST
    manifest.write_bytes(orjson.dumps(orjson.loads(manifest.read_bytes()) | {"format": 2}))
    with pytest.raises(RunError, match=r"format 2;.*\b1\b"):
        run.checkpoints.newest()
    assert manifest.exists()


def test_a_folder_that_cannot_be_written_is_a_named_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(RunError, match="cannot write"):
        Run(tmp_path).checkpoints.begin(1)
