"""Replays come from the environments' folders; a broken replay.py affects only its own environment."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from rollyard.cli.viewer import Replays
from rollyard.records.data_files import INSTALLED

GOOD = """
from rollyard.records.replay import Frame, Replay

def replay(row):
    return Replay(cells=[], frames=[Frame(board=row["board"])]) if "board" in row else None
"""


def write_replay(root: Path, name: str, text: str) -> None:
    folder = root / "resources_servers" / name
    folder.mkdir(parents=True)
    (folder / "replay.py").write_text(text)


def test_a_local_environment_folder_needs_no_registration(tmp_path: Path) -> None:
    write_replay(tmp_path, "replaytest_mine", GOOD)
    replays = Replays([tmp_path, INSTALLED])
    found = replays({"board": "x"})
    assert found is not None and found.frames[0].board == "x"
    assert replays({"question": "1 + 1"}) is None  # a row that no environment recognizes


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("replaytest_syntax", "def replay(row:"), ("replaytest_nothing", "x = 1")),
        ("replaytest_raises", "def replay(row): raise KeyError('seed')"),
        ("replaytest_wrong", "def replay(row): return {'frames': 3}"),
        ("replaytest_exits", "def replay(row): raise SystemExit(3)"),
    ],
)
def test_a_broken_replay_is_reported_once_and_the_others_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, text: str
) -> None:
    write_replay(tmp_path, name, text)
    write_replay(tmp_path / "second", f"{name}_good", GOOD)
    replays = Replays([tmp_path, tmp_path / "second"])
    with caplog.at_level(logging.WARNING):
        found = [replays({"board": "x"}) for _ in range(3)]
    assert all(replay is not None for replay in found)
    reported = [record.args[1] for record in caplog.records if isinstance(record.args, tuple)]
    assert reported == [f"resources_servers/{name}"]


def test_the_example_of_the_guide_works(tmp_path: Path) -> None:
    guide = (INSTALLED / "docs" / "viewer.md").read_text()
    blocks: list[str] = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (block,) = [block for block in blocks if "def replay(" in block]
    write_replay(tmp_path, "replaytest_guide", block)
    found = Replays([tmp_path])({"guesses": [7, 12]})
    assert found is not None
    assert [(frame.board, frame.event) for frame in found.frames] == [("  7", 0), (" 12", 1)]


def test_the_installed_sokoban_replay_is_found() -> None:
    found = Replays([INSTALLED])({"seed": 84810, "dim_room": [5, 5], "num_boxes": 1})
    assert found is not None and found.title == "Sokoban 5x5, 1 box"
