"""Every command and every data preparation script, started in an empty folder."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.external.packages.installation import Installation
from tests.external.packages.runs import play_sokoban
from tests.modules import ROOT

COMMANDS = tuple(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"])
SCRIPTS = tuple(
    ".".join(("rollyard", *path.relative_to(ROOT).with_suffix("").parts))
    for path in sorted(ROOT.glob("resources_servers/*/*.py"))
    if "run_script(" in path.read_text()
)
SOKOBAN = "rollyard.resources_servers.grl_sokoban"


def test_every_command_runs(main: Installation, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        helps = pool.map(lambda name: main.run(name, "--help", cwd=tmp_path), COMMANDS)
    # The commands with the options of another project print argparse's help.
    assert [text.removeprefix("usage: ").replace(":", " ").split()[0] for text in helps] == list(COMMANDS)


def test_every_python_imports_every_command(
    installed: Callable[[str], Installation], version: str, tmp_path: Path
) -> None:
    modules = ", ".join(f"rollyard.cli.{name.removeprefix('ng_')}" for name in COMMANDS)
    assert installed(version).prints(f"import {modules}; print('imported')", cwd=tmp_path) == "imported"


def test_every_python_plays_sokoban(installed: Callable[[str], Installation], version: str, tmp_path: Path) -> None:
    play_sokoban(installed(version), tmp_path)


def test_a_colocated_stack_plays_sokoban(main: Installation, tmp_path: Path) -> None:
    play_sokoban(main, tmp_path, "colocated")


def test_every_script_runs_as_a_module(main: Installation, tmp_path: Path) -> None:
    assert len(SCRIPTS) >= 8
    with ThreadPoolExecutor(2) as pool:
        helps = list(pool.map(lambda name: main.run("python", "-m", name, "--help", cwd=tmp_path), SCRIPTS))
    assert all(text.startswith("usage:") for text in helps)


def test_rows_are_prepared_from_a_local_file(main: Installation, tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    words = ("--local", "test.jsonl", "--output", "rows.jsonl")
    printed = main.run("python", "-m", "rollyard.resources_servers.gsm8k.prepare", *words, cwd=tmp_path)
    assert printed == "1 rows -> rows.jsonl\n"


def test_puzzles_are_generated_and_rewards_are_analysed(main: Installation, tmp_path: Path) -> None:
    words = ("--num-examples", "1", "--output", "rows.jsonl")
    main.run("python", "-m", f"{SOKOBAN}.generate_test_examples", *words, cwd=tmp_path)
    assert (tmp_path / "rows.jsonl").read_text().count("\n") == 1
    (tmp_path / "rollouts.jsonl").write_text('{"reward": 1.0, "response": {"output": []}}\n')
    assert main.run("python", "-m", f"{SOKOBAN}.analyze_rewards", "--rollouts-path", "rollouts.jsonl", cwd=tmp_path)


def test_folders_in_the_working_directory_never_shadow_packages(main: Installation, tmp_path: Path) -> None:
    for name in ("services", "agents", "configs", "numpy", "rollyard"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError(__name__)\n")
    (tmp_path / "random.py").write_text("raise RuntimeError(__name__)\n")
    play_sokoban(main, tmp_path)


def test_a_clone_in_the_working_directory_is_not_imported(main: Installation, tmp_path: Path) -> None:
    for name in ("records", "resources_servers/gsm8k", "src/rollyard"):
        (tmp_path / "rollyard" / name).mkdir(parents=True)
    (tmp_path / "rollyard/records/errors.py").write_text("raise RuntimeError(__name__)\n")
    code = "import rollyard.records.errors as errors; print(errors.__file__)"
    assert "site-packages" in main.prints(code, cwd=tmp_path)
    help_text = main.run("python", "-m", "rollyard.resources_servers.gsm8k.prepare", "--help", cwd=tmp_path)
    assert help_text.startswith("usage:")
