"""Which files count as the code of a server and which do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.records.io.search_path import INSTALLED
from rollyard.records.run_types import ServerCode
from rollyard.records.types import Json
from rollyard.services.config.plugins import load_server
from rollyard.services.config.server_code.code_version import loaded_code
from rollyard.services.config.server_folders import FAMILIES
from tests.support.fixtures import PLAIN_APP, make_folder

WITH_LEVELS = PLAIN_APP + "\nLEVELS = 'levels.json'\nPROMPTS = 'prompts'\nGOLD = f'data/{LEVELS}.gold'\n"


def folder_of(root: Path, app: str = PLAIN_APP, **files: str) -> Path:
    return root / "resources_servers" / make_folder(root, app=app, **files)


def code(folder: Path, settings: Json | None = None) -> ServerCode:
    kind = load_server("resources_servers", folder, "app.py")
    return loaded_code(folder, kind, FAMILIES, settings or {}).code


@pytest.mark.parametrize(
    "place",
    [
        "app.py",
        "rules.py",
        "deep/er/rules.py",
        "levels.json",
        "data/levels.json",
        "data/prompts/one.txt",
        "data/x.gold",
    ],
)
def test_code_changes_with_each_file_that_the_server_uses(tmp_path: Path, place: str) -> None:
    folder = folder_of(tmp_path, app=WITH_LEVELS, rules="A = 1")
    before = code(folder)
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("\n# more")
    after = code(folder)
    assert before.digest != after.digest
    assert [name for name in after.files if before.files.get(name) != after.files[name]] == [
        f"resources_servers/{folder.name}/{place}"
    ]


@pytest.mark.parametrize(
    "place",
    [
        *("__pycache__/app.cpython-311.pyc", "app.pyc", ".git/config", ".app.py.swp", "logs/server.log", "server.log"),
        *("results/rollouts.jsonl", "data/rollouts.jsonl", "data/train.jsonl", "README.md", "data/report.md"),
        *(
            "run_manifest.json",
            "run.jsonl",
            "run_failures.jsonl",
            "run_notes.jsonl",
            "run_status.json",
            "configs/mine.yaml",
            "notes.txt",
        ),
    ],
)
def test_code_does_not_change_with_other_files_in_its_folder(tmp_path: Path, place: str) -> None:
    folder = folder_of(tmp_path, app=WITH_LEVELS)
    before = code(folder)
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    assert code(folder) == before


def test_code_includes_files_that_settings_name(tmp_path: Path) -> None:
    folder, levels = folder_of(tmp_path), tmp_path / "levels.txt"
    levels.write_text("one")
    before = code(folder, {"title": str(levels)})
    levels.write_text("two")
    assert code(folder, {"title": str(levels)}).digest != before.digest


def test_code_includes_shared_modules_and_declared_packages() -> None:
    found = code(INSTALLED / "resources_servers" / "math")
    assert {"resources_servers/answers/equality.py", "resources_servers/base.py"} <= found.files.keys()
    assert "math-verify" in found.packages
    assert not any(name.startswith("services/") or "sokoban" in name for name in found.files)


def test_code_does_not_depend_on_the_location_of_the_folder(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    folder = folder_of(old)
    (new / "resources_servers").mkdir(parents=True)
    before = code(folder)
    moved = folder.rename(new / "resources_servers" / folder.name)
    assert code(moved) == before


@pytest.mark.parametrize(
    "code_line,place",
    [
        ("WORDS = NAME + '.txt'", "words.txt"),
        ("WORDS = Path(__file__).with_suffix('.csv')", "app.csv"),
        ("LEVEL = 'level%d.lv' % 1", "level1.lv"),
        ("LEVEL = f'levels/{NAME}/easy.lv'", "levels/a/easy.lv"),
        ("GOLD = 'data/gold.jsonl'", "data/gold.jsonl"),
        ("RULES = ('app'); COMMAND = 'judge.py'", "judge.py"),
        ("A = 1; from .judge import A", "judge.py"),
    ],
)
def test_code_changes_with_a_file_that_it_names_in_any_syntax(tmp_path: Path, code_line: str, place: str) -> None:
    app = f"from pathlib import Path\nNAME = 'a'\n{PLAIN_APP}\n{code_line}\n"
    folder = folder_of(tmp_path, app=app, judge="A = 1\nif __name__ == '__main__':\n    print(A)\n")
    before = code(folder)
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    with (folder / place).open("a") as file:
        file.write("# more")
    assert code(folder).digest != before.digest


def test_code_changes_with_modules_and_data_of_packages_outside_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "rules_outside"
    outside.mkdir()
    for name, text in (("__init__.py", ""), ("rules.py", "from . import more"), ("more.py", "W = 'words.txt'")):
        (outside / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = folder_of(tmp_path, app=f"{PLAIN_APP}\ndef late():\n    __import__('rules_outside.rules')\n")
    digests = [code(folder).digest]
    for name in ("more.py", "words.txt"):
        with (outside / name).open("a") as file:
            file.write("\n# more")
        digests.append(code(folder).digest)
    assert len(set(digests)) == 3


def test_code_does_not_change_with_scripts_that_the_server_does_not_run(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, prepare="if __name__ == '__main__':\n    print(1)\n", rules="A = 1")
    before = code(folder)
    (folder / "prepare.py").write_text("import random\nif __name__ == '__main__':\n    print(2)\n")
    for place in ("tests/test_app.py", "test_rules.py", "conftest.py", "build/lib/app.py"):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text("A = 2")
    assert code(folder) == before


def test_code_does_not_change_with_system_files_that_it_reads(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, app=f"{PLAIN_APP}\nMEMORY = '/proc/self/stat'\n")
    assert code(folder) == code(folder)
    assert not any("proc" in name for name in code(folder).files)


def test_code_does_not_change_when_only_times_and_permissions_change(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    before = code(folder)
    (folder / "app.py").touch()
    (folder / "app.py").chmod(0o600)
    assert code(folder) == before
