"""ng_run as a process, and the commands that use its run. tests/snapshots shows what they print."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.commands import Command, Running, command, config, ng_run
from tests.support.stacks import AGENT, EXAMPLES, SOKOBAN, read_rows

TOKEN = "open-sesame"
REPEATS = 2


@pytest.fixture(scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    folder: Path = tmp_path_factory.mktemp("run")
    shutil.copy(EXAMPLES, folder / "in.jsonl")
    async with ng_run(config(SOKOBAN), "+colocate=true", f"+token={TOKEN}", "+head_port=0", cwd=folder) as running:
        yield running


@pytest.fixture
def here(run: Running, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(run.cwd)
    return run.cwd


async def test_an_installed_command_runs_in_an_empty_folder(tmp_path: Path) -> None:
    version = await command("ng_status", "--version", cwd=tmp_path)
    assert (version.status, version.err) == (0, "")
    assert "rollyard" in version.out


def test_a_collection_measures_every_rollout_and_writes_its_materialized_inputs(here: Path, ng: Command) -> None:
    files = ("+input_jsonl_fpath=in.jsonl", "+output_jsonl_fpath=out/rollouts.jsonl", "+materialize_inputs=true")
    options = (f"+agent_name={AGENT}", f"+num_repeats={REPEATS}", "+responses_create_params.temperature=0.8")
    done = ng("ng_collect_rollouts", *files, *options)
    assert done.status == 0, done.err
    count = len(read_rows(EXAMPLES)) * REPEATS
    assert f"{count} of {count}" in done.out
    for name in ("rollouts", "rollouts_materialized_inputs"):
        assert len(read_rows(here / f"out/{name}.jsonl")) == count


@pytest.mark.parametrize(
    ("collectors", "found"),
    [(1, "16 was found (the rollouts are too few to measure more)"), (2, "32 was found (the sum over the collectors)")],
)
def test_the_concurrency_that_a_collection_has_found_is_shown(
    here: Path, ng: Command, collectors: int, found: str
) -> None:
    files = ("--input", "in.jsonl", "--output", f"out/found{collectors}.jsonl")
    options = ("--concurrency", "auto", "--num-collectors", collectors)
    done = ng("ng_collect_rollouts", *files, "--agent", AGENT, *map(str, options))
    assert done.status == 0, done.err
    assert f"concurrency   {found}" in done.out


def test_a_run_with_a_token_accepts_only_commands_that_know_it(
    run: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ng: Command
) -> None:
    head = run.printed.partition("head http://")[2].split()[0]
    monkeypatch.chdir(tmp_path)
    without_token = ng("ng_status", f"+head={head}")
    monkeypatch.setenv("ROLLYARD_TOKEN", TOKEN)
    with_token = ng("ng_status", f"+head={head}")
    assert (without_token.status, with_token.status) == (1, 0)
    assert "token" in without_token.err
    assert TOKEN not in run.printed
