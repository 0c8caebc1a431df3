"""Which files count as the code of a server and which do not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rollyard.services.config.server_code import server_code
from tests.support.fixtures import make_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "resources_servers" / make_folder(tmp_path)


@pytest.mark.parametrize(
    "place",
    ["app.py", "deep/er/rules.py", "fast.so", "levels.json", "data/levels.json", "prompts/one.txt", "requirements.txt"],
)
def test_code_changes_with_each_file_in_the_servers_folder(folder: Path, place: str) -> None:
    before = server_code(folder)
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("\n# more")
    assert before.changes_to(server_code(folder)).split(" ")[1] == f"resources_servers/{folder.name}/{place}"


@pytest.mark.parametrize(
    "place",
    [
        *("__pycache__/app.cpython-311.pyc", "app.pyc", ".git/config", ".app.py.swp", "logs/server.log", "server.log"),
        *("data/train.jsonl", "run.jsonl", "run_manifest.json", "run_status.json", "results/report.md", "README.md"),
        *("configs/mine.yaml", "tests/test_app.py", "test_rules.py", "conftest.py", "build/lib/app.py"),
        *("env/pyvenv.cfg", "mine.egg-info/PKG-INFO"),
    ],
)
def test_code_does_not_change_with_caches_tests_rows_and_results(folder: Path, place: str) -> None:
    before = server_code(folder)
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    assert server_code(folder) == before


def test_code_does_not_change_with_the_place_the_time_and_the_mode_of_its_files(folder: Path, tmp_path: Path) -> None:
    before = server_code(folder)
    (tmp_path / "new" / "resources_servers").mkdir(parents=True)
    moved = folder.rename(tmp_path / "new" / "resources_servers" / folder.name)
    (moved / "app.py").touch()
    (moved / "app.py").chmod(0o600)
    assert server_code(moved) == before


def test_the_git_revision_is_recorded_and_does_not_make_different_code(folder: Path, tmp_path: Path) -> None:
    before = server_code(folder)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "First"], check=True)
    after = server_code(folder)
    assert before.revision == "" and after.revision is not None and len(after.revision) == 40
    assert before.changes_to(after) == ""
