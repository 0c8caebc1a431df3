"""ng_init: its folders are playable, tested and formatted; invalid names are rejected."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rollyard
from rollyard.cli.collect_rollouts import CollectOptions
from rollyard.cli.init import KINDS, run
from rollyard.cli.options import read_options
from rollyard.cli.run import RunOptions
from rollyard.cli.viewer import ViewerOptions
from rollyard.errors import RunError
from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.plan import check
from rollyard.records.data_files import INSTALLED
from tests.support.commands import BIN
from tests.support.doc_pages import commands

PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]


pytestmark = pytest.mark.usefixtures("here")


def init(*arguments: str) -> list[list[str]]:
    """Run the command in this process; return the commands that it prints, split into words."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert run(arguments) == 0
    lines = printed.getvalue().replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line.startswith("  ")]


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_can_be_played_unchanged_and_environments_earn_a_reward(tmp_path: Path, kind: str) -> None:
    start, collect, view = init("my_new_thing", f"+kind={kind}")
    paths = read_options(RunOptions, start[1:], rest=True)[0].config_paths
    options = read_options(CollectOptions, collect[1:])[0]
    assert read_options(ViewerOptions, view[1:])[0].jsonl_fpath == [options.output_jsonl_fpath]
    async with rollyard.stack(paths, colocate=True, folder=tmp_path) as stack:
        played = (str(options.input_jsonl_fpath), options.output_jsonl_fpath)
        how: dict[str, Any] = {"agent_name": options.agent_name, "num_repeats": options.num_repeats}
        summary = await rollyard.collect(stack, *played, **how)
    assert summary.state == "complete", summary.failures
    if kind != "model":  # whose answer never earns a reward
        assert (summary.mean_reward or 0) > 0


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[list[str]]]]:
    """A folder with one of each kind, and the commands that were printed for them."""
    folder: Path = tmp_path_factory.mktemp("kinds")
    with contextlib.chdir(folder):
        return folder, {kind: init(f"my_{kind}", f"+kind={kind}") for kind in KINDS}


def test_every_readme_has_the_printed_commands_and_no_placeholders(
    every_kind: tuple[Path, dict[str, list[list[str]]]],
) -> None:
    folder, printed = every_kind
    for kind in KINDS:
        (readme,) = folder.glob(f"*/my_{kind}/README.md")
        assert commands(readme.read_text())[:3] == printed[kind]
        text = "".join(path.read_text() for path in readme.parent.glob("**/*.*") if path.suffix != ".pyc")
        assert not re.search(r"my_name|MyName|_COMMAND", text)


@pytest.mark.parametrize(
    "check",
    [
        PYTEST,
        # As in a checkout, without the plugin that the tests of Rollyard itself need.
        [*PYTEST, "-p", "no:asyncio", "-c", f"{INSTALLED}/pyproject.toml", "."],
        [str(BIN / "ruff"), "check", "--line-length=120", "."],
        [str(BIN / "ruff"), "format", "--check", "--line-length=120", "."],
    ],
    ids=["tests", "tests in a checkout", "style", "format"],
)
def test_new_folders_pass_their_tests_and_are_formatted(
    every_kind: tuple[Path, dict[str, list[list[str]]]], check: list[str]
) -> None:
    done = subprocess.run(check, cwd=every_kind[0], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("kind", ["single_turn", "tools", "turns"])
async def test_ng_eval_finds_the_rows_of_a_new_environment_also_if_its_config_names_none(
    tmp_path: Path, kind: str
) -> None:
    init("mine", f"--kind={kind}")
    config = EvalConfig(model="builtin", environments=("mine",), output_dir=Path("results"))
    plan = await check(config, {}, tmp_path)
    assert plan.tasks.count and plan.input_jsonl_fpath == "resources_servers/mine/data/example.jsonl"
    config_file = tmp_path / "resources_servers/mine/configs/mine.yaml"
    config_file.write_text(re.sub(r"\n +datasets:.*", "", config_file.read_text()))
    assert (await check(config, {}, tmp_path)).tasks.count


def test_a_folder_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "resources_servers").write_text("a file")
    with pytest.raises(RunError, match="resources_servers"):
        run(["mine"])
    assert [path.name for path in tmp_path.iterdir()] == ["resources_servers"]


def test_the_installed_package_contains_the_templates() -> None:
    assert {path.name for path in (INSTALLED / "cli/templates").iterdir() if path.is_dir()} == set(KINDS)
