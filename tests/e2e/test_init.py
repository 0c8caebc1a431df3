"""ng_init: its folders are playable, tested and formatted; invalid names are rejected."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import rollyard
from rollyard.errors import OperatorError, RunError
from rollyard.services.cli.collect_rollouts import CollectOptions
from rollyard.services.cli.init import KINDS, run
from rollyard.services.cli.options import read_options
from rollyard.services.cli.run import RunOptions
from rollyard.services.cli.viewer import ViewerOptions
from rollyard.services.io.search_path import INSTALLED
from tests.support.commands import BIN, command, ng_run
from tests.support.doc_pages import commands


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def init(*arguments: str) -> list[list[str]]:
    """Run the command in this process; return the commands that it prints, split into words."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert run(arguments) == 0
    lines = printed.getvalue().replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line.startswith("  ")]


async def test_the_printed_commands_play_the_environment_and_earn_a_reward(tmp_path: Path) -> None:
    done = await command("ng_init", "my_env", "+kind=tools", cwd=tmp_path)
    assert done.status == 0, done.err
    lines = done.out.replace("\\\n", " ").splitlines()
    start, collect, view = (shlex.split(line) for line in lines if line.startswith("  "))
    async with ng_run(*start[1:], cwd=tmp_path):
        collected = await command(*collect, cwd=tmp_path)
    assert collected.status == 0, collected.err
    assert sum(row["reward"] for row in rollyard.read_rollouts("results/my_env.jsonl")) > 0
    options, _ = read_options(ViewerOptions, view[1:])
    assert [str(path) for path in options.jsonl_fpath] == ["results/my_env.jsonl"]


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_can_be_played_unchanged_and_environments_earn_a_reward(tmp_path: Path, kind: str) -> None:
    start, collect, _ = init("my_new_thing", f"+kind={kind}")
    paths = read_options(RunOptions, start[1:], rest=True)[0].config_paths
    options = read_options(CollectOptions, collect[1:])[0]
    async with rollyard.stack(paths, colocate=True, folder=tmp_path) as stack:
        summary = await rollyard.collect(
            stack,
            str(options.input_jsonl_fpath),
            options.output_jsonl_fpath,
            agent_name=options.agent_name,
            num_repeats=options.num_repeats,
        )
    assert summary.state == "complete", summary.failures
    if kind != "model":  # whose answer never earns a reward
        assert (summary.mean_reward or 0) > 0


async def test_every_kind_has_a_passing_test_formatted_code_and_a_readme_with_the_commands(
    tmp_path: Path,
) -> None:
    for kind in KINDS:
        printed = init(f"my_{kind}", f"+kind={kind}")
        (readme,) = tmp_path.glob(f"*/my_{kind}/README.md")
        assert commands(readme.read_text())[:3] == printed
        assert not re.search(
            r"my_name|MyName|_COMMAND", "".join(path.read_text() for path in readme.parent.glob("**/*.*"))
        )
    tested = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "pytest", "-q"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout
    for check in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [BIN / "ruff", *check, "--line-length=120", "."], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["my-env"], r"'my-env' is not a valid folder name.* such as my_env"),
        (["class"], "'class' is a Python keyword"),
        (["on"], "YAML does not parse 'on' as a string"),
        (["null", "+kind=agent"], "YAML does not parse 'null' as a string"),
        (["My Env"], "such as my_env"),
        (["../x"], "'../x' is not a valid folder name"),
        (["gsm8k"], "resources_servers/gsm8k is part of Rollyard"),
        (["game_agent"], "agents/game_agent is part of Rollyard"),
        ([], "the name of the new folder is missing"),
        (["a", "b"], "expected one name, found 'a' and 'b'"),
        (["a", "+kind=game"], "'single_turn', 'tools', 'turns', 'agent' or 'model'"),
    ],
)
def test_an_invalid_name_is_rejected_and_nothing_is_written(tmp_path: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        run(arguments)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_not_changed(tmp_path: Path) -> None:
    init("mine")
    app = tmp_path / "resources_servers/mine/app.py"
    app.write_text("changed")
    with pytest.raises(OperatorError, match="resources_servers/mine already exists"):
        run(["mine"])
    assert app.read_text() == "changed"


def test_a_folder_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "resources_servers").write_text("a file")
    with pytest.raises(RunError, match="cannot write"):
        run(["mine"])
    assert [path.name for path in tmp_path.iterdir()] == ["resources_servers"]


def test_the_installed_package_contains_the_templates() -> None:
    assert {path.name for path in (INSTALLED / "services/cli/templates").iterdir() if path.is_dir()} == set(KINDS)
