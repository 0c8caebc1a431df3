"""The main workflow with the commands of an installation: start a run, collect rollouts, write a report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rollyard.records.types import Json
from tests.external.packages.installation import Installation
from tests.support.stacks import read_rows

MODEL = "responses_api_models/builtin_model/configs/builtin_model.yaml"
SOKOBAN = "+config_paths=[configs/sokoban_builtin.yaml]"
MODES = {"processes": (), "colocated": ("+colocate=true",)}


def collect(environment: Installation, agent: str, rows: str, cwd: Path) -> list[Json]:
    files = (f"+input_jsonl_fpath={rows}", "+output_jsonl_fpath=rollouts.jsonl")
    environment.run("ng_collect_rollouts", f"+agent_name={agent}", *files, "+num_repeats=1", cwd=cwd)
    return read_rows(cwd / "rollouts.jsonl")


def play_sokoban(
    environment: Installation, cwd: Path, mode: str = "processes", env: Mapping[str, str] | None = None
) -> None:
    with environment.stack(SOKOBAN, *MODES[mode], cwd=cwd, env=env):
        assert "3 of 3 ready" in environment.run("ng_status", cwd=cwd, env=env)
        rows = collect(environment, "grl_sokoban_game_agent", "resources_servers/grl_sokoban/data/example.jsonl", cwd)
    assert len(rows) == 5 and not read_rows(cwd / "rollouts_failures.jsonl")
    environment.run("ng_reward_profile", "+jsonl_fpath=rollouts.jsonl", cwd=cwd, env=env)
    assert (cwd / "rollouts_profile" / "profile.html").is_file()
