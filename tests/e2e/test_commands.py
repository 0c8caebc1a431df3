"""ng_run as a process, and the commands that use its run. tests/snapshots shows what they print."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.commands import Running, command, config, in_this_process, ng_run
from tests.support.stacks import AGENT, EXAMPLES, SOKOBAN, read_rows

TOKEN = "open-sesame"
REPEATS = 2
COLLECT = (
    "ng_collect_rollouts",
    "+input_jsonl_fpath=in.jsonl",
    f"+num_repeats={REPEATS}",
    "+responses_create_params.temperature=0.8",
)


@pytest.fixture(scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """The demo run, with a token."""
    folder: Path = tmp_path_factory.mktemp("run")
    shutil.copy(EXAMPLES, folder / "in.jsonl")
    async with ng_run(config(SOKOBAN), "+colocate=true", f"+token={TOKEN}", "+head_port=0", cwd=folder) as running:
        yield running


@pytest.fixture
def here(run: Running, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the run, which is the working directory."""
    monkeypatch.chdir(run.cwd)
    return run.cwd


async def test_an_installed_command_runs_in_an_empty_folder(tmp_path: Path) -> None:
    version = await command("ng_status", "--version", cwd=tmp_path)
    assert (version.status, version.err) == (0, "")
    assert "rollyard" in version.out


def test_without_a_run_nothing_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    given = (f"+agent_name={AGENT}", f"+input_jsonl_fpath={EXAMPLES}", "+output_jsonl_fpath=out.jsonl")
    collected = in_this_process("ng_collect_rollouts", *given, "+head=127.0.0.1:1", capsys=capsys)
    assert (collected.status, list(tmp_path.iterdir())) == (1, [])


def test_a_collection_measures_every_rollout_and_writes_its_materialized_inputs(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = ("+output_jsonl_fpath=out/rollouts.jsonl", f"+agent_name={AGENT}", "+materialize_inputs=true")
    done = in_this_process(*COLLECT, *output, capsys=capsys)
    assert done.status == 0, done.err
    count = len(read_rows(EXAMPLES)) * REPEATS
    assert f"{count} of {count}" in done.out
    for name in ("rollouts", "rollouts_materialized_inputs"):
        assert len(read_rows(here / f"out/{name}.jsonl")) == count


def test_a_repeated_command_resumes_and_a_changed_one_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = (*COLLECT, "+output_jsonl_fpath=out/resumed.jsonl", "+limit=2", f"+agent_name={AGENT}")
    assert in_this_process(*line, capsys=capsys).status == 0
    written = (here / "out/resumed.jsonl").read_bytes()
    resumed = in_this_process(*line, capsys=capsys)
    assert (resumed.status, "resuming: 4 of 4" in resumed.err) == (0, True), resumed.err
    changed = in_this_process(*line, "+responses_create_params.temperature=0", capsys=capsys)
    assert changed.status == 2
    assert re.search(r"responses_create_params.temperature: 0\.8 .*, 0 ", changed.err)
    assert (here / "out/resumed.jsonl").read_bytes() == written


def test_a_mistyped_agent_is_refused_with_the_nearest_name(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("+output_jsonl_fpath=out/mistyped.jsonl", "+agent_name=grl_sokoban_game_agnet")
    refused = in_this_process(*COLLECT, *given, capsys=capsys)
    assert (refused.status, f"'{AGENT}'" in refused.err) == (2, True), refused.err


def test_a_run_with_a_token_accepts_only_commands_that_know_it(
    run: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    head = run.printed.partition("head http://")[2].split()[0]
    monkeypatch.chdir(tmp_path)
    without_token = in_this_process("ng_status", f"+head={head}", capsys=capsys)
    monkeypatch.setenv("ROLLYARD_TOKEN", TOKEN)
    with_token = in_this_process("ng_status", f"+head={head}", capsys=capsys)
    assert (without_token.status, with_token.status) == (1, 0)
    assert "token" in without_token.err
    assert TOKEN not in run.printed


def test_more_parallel_episodes_than_the_open_file_limit_allows_are_rejected_at_the_start(tmp_path: Path) -> None:
    limited = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300)); "
        "from rollyard.cli.collect_rollouts import main; main()"
    )
    options = [f"+agent_name={AGENT}", f"+input_jsonl_fpath={EXAMPLES}", "+output_jsonl_fpath=o.jsonl"]
    refused = subprocess.run(
        [sys.executable, "-c", limited, *options, "+num_samples_in_parallel=250"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2, refused.stderr
    assert "350 open files in this command's process" in refused.stderr
