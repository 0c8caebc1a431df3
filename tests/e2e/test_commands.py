"""Output, error messages and exit statuses of the commands."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from tests.support.commands import command, config, in_this_process, ng_run
from tests.support.stacks import AGENT, EXAMPLES, SOKOBAN, read_rows

COMMANDS = ("ng_run", "ng_collect_rollouts", "ng_status")
VLLM = "responses_api_models/vllm_model/configs/vllm_model.yaml"
POLICY = ("+policy_base_url=http://127.0.0.1:1/v1", "+policy_api_key=none", "+policy_model_name=any")
TRAINING = "++policy_model.responses_api_models.vllm_model.trainer_endpoints"


@pytest.mark.parametrize("name", COMMANDS)
async def test_help_and_version_return_0_in_an_empty_folder(tmp_path: Path, name: str) -> None:
    helped, version = await asyncio.gather(*(command(name, flag, cwd=tmp_path) for flag in ("--help", "--version")))
    assert (helped.status, version.status) == (0, 0)
    assert helped.out.startswith(f"{name}: ")
    assert "Example:" in helped.out
    assert "rollyard" in version.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ng_run",), "'config_paths' is missing"),
        (("ng_run", "+config_paths=[]"), "config_paths=["),
        (("ng_run", f"+config_paths=[{SOKOBAN}]", "+colocat=true"), "did you mean 'colocate'?"),
        (("ng_run", "+config_paths=[configs/sokoban_bulitin.yaml]"), "did you mean 'configs/sokoban_builtin.yaml'?"),
        (("ng_run", f"+config_paths=[{SOKOBAN}]", "+head_host=0.0.0.0"), "without a run token"),
        (("ng_run", f"+config_paths=[{VLLM}]", *POLICY, f"{TRAINING}=true"), "change the policy: add +token="),
        (("ng_run", f"+config_paths=[{SOKOBAN}]", "grl_sokoban_game_agent.agents.game_agent.max_stps=3"), "max_steps"),
        (("ng_collect_rollouts", "+num_samples_in_paralel=4"), "did you mean 'num_samples_in_parallel'?"),
        (("ng_collect_rollouts", "+input_jsonl_fpath=a", "+output_jsonl_fpath=b", "+num_repeats=0"), "num_repeats"),
        (("ng_collect_rollouts", "+input_jsonl_fpath=none.jsonl", "+output_jsonl_fpath=b"), "none.jsonl"),
        (("ng_status", "+jsn=true"), "did you mean 'json'?"),
    ],
)
def test_wrong_usage_prints_a_message_and_returns_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = in_this_process(*arguments, capsys=capsys)
    assert refused.status == 2, refused.err
    assert message in refused.err
    assert "Traceback" not in refused.err
    assert not (tmp_path / ".rollyard").exists()


async def test_a_dry_run_checks_everything_and_starts_nothing(tmp_path: Path) -> None:
    checked = await command("ng_run", config(SOKOBAN), "+dry_run=true", cwd=tmp_path)
    assert checked.status == 0
    assert "nothing was started" in checked.out
    assert not (tmp_path / ".rollyard").exists()


async def test_without_a_run_the_commands_report_where_they_looked(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        head = f"+head=127.0.0.1:{free.getsockname()[1]}"
        status, collected = await asyncio.gather(
            command("ng_status", head, cwd=tmp_path),
            command(
                "ng_collect_rollouts",
                head,
                f"+agent_name={AGENT}",
                f"+input_jsonl_fpath={EXAMPLES}",
                "+output_jsonl_fpath=out.jsonl",
                cwd=tmp_path,
            ),
        )
    assert (status.status, collected.status) == (1, 1)
    assert "no running stack found" in status.err
    assert "Start one with ng_run" in collected.err
    assert not (tmp_path / "out.jsonl").exists()


async def test_the_demo_run_is_listed_collected_and_resumed_and_a_changed_command_is_rejected(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES, tmp_path / "in.jsonl")
    line = (
        "ng_collect_rollouts",
        f"+agent_name={AGENT}",
        "+input_jsonl_fpath=in.jsonl",
        "+output_jsonl_fpath=out/rollouts.jsonl",
        "+num_repeats=3",
        "+materialize_inputs=true",
    )
    async with ng_run(config(SOKOBAN), "+colocate=true", cwd=tmp_path):
        status, table, first = await asyncio.gather(
            command("ng_status", "+json=true", cwd=tmp_path),
            command("ng_status", cwd=tmp_path),
            command(*line, cwd=tmp_path),
        )
        resumed = await command(*line, cwd=tmp_path)
        changed, mistyped = await asyncio.gather(
            command(*line, "+responses_create_params.temperature=0", cwd=tmp_path),
            command(*line[:1], "+agent_name=grl_sokoban_game_agnet", *line[2:], cwd=tmp_path),
        )
    assert [server["ready"] for server in orjson.loads(status.out)] == [True, True, True]
    assert "3 of 3 ready" in table.out
    assert (first.status, resumed.status) == (0, 0)
    assert "15 of 15 rollouts measured" in first.out
    assert "resuming: 15 of 15" in resumed.err
    assert len(read_rows(tmp_path / "out/rollouts.jsonl")) == 15
    assert len(read_rows(tmp_path / "out/rollouts_materialized_inputs.jsonl")) == 15
    assert changed.status == 2
    assert "responses_create_params.temperature: not set in the file, 0 now" in changed.err
    assert mistyped.status == 2
    assert f"did you mean '{AGENT}'?" in mistyped.err


async def test_a_run_with_a_token_accepts_only_commands_that_know_it(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    async with ng_run(config(SOKOBAN), "+colocate=true", "+token=open-sesame", cwd=tmp_path) as running:
        head = running.printed.partition("head http://")[2].split()[0]
        same_folder, without_token, with_token = await asyncio.gather(
            command("ng_status", cwd=tmp_path),
            command("ng_status", f"+head={head}", cwd=elsewhere),
            command("ng_status", f"+head={head}", cwd=elsewhere, env={"ROLLYARD_TOKEN": "open-sesame"}),
        )
        printed = running.printed
    assert (same_folder.status, without_token.status, with_token.status) == (0, 1, 0)
    assert "token" in without_token.err
    assert "open-sesame" not in printed


def test_more_parallel_episodes_than_the_open_file_limit_allows_are_rejected_at_the_start(tmp_path: Path) -> None:
    limited = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300)); "
        "from rollyard.services.cli.collect_rollouts import main; main()"
    )
    options = [f"+agent_name={AGENT}", f"+input_jsonl_fpath={EXAMPLES}", "+output_jsonl_fpath=o.jsonl"]
    refused = subprocess.run(
        [sys.executable, "-c", limited, *options, "+num_samples_in_parallel=64"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2, refused.stderr
    assert "64 concurrent episodes need about 392 open files" in refused.stderr
