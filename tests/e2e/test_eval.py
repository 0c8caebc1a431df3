"""ng_eval with the built-in policy: the files of a clean run, its messages, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.evaluate import evaluate
from rollyard.records.types import CollectionStatus
from tests.support.commands import Command
from tests.support.evaluations import EvalProcess, ng_eval
from tests.support.fixtures import make_folder
from tests.support.stacks import EXAMPLES, read_rows

CONFIG = "configs/sokoban_eval.yaml"
SMALL = ("limit=4", "num_repeats=2", "colocate=true")
LOGS = {"nemo_gym_servers.log", "rollout_collection.log", "reward_analysis.log"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("eval")


@pytest.fixture(scope="module")
def clean(folder: Path) -> Iterator[EvalProcess]:
    """A finished evaluation; its ROLLYARD_TOKEN must not be written anywhere."""
    with ng_eval(CONFIG, *SMALL, cwd=folder, output="out", env={"ROLLYARD_TOKEN": "a-secret-token"}) as running:
        assert running.wait() == 0, running.printed
        yield running


def test_a_clean_run_leaves_the_documented_files(clean: EvalProcess) -> None:
    names = {path.name for path in clean.output.iterdir()}
    assert {"rollouts.jsonl", "reward_analysis.md", "reward_analysis.html", "reward_analysis.json"} <= names
    assert {path.name for path in (clean.output / "logs").iterdir()} == LOGS
    assert len(read_rows(clean.output / "rollouts.jsonl")) == 8
    assert json.loads((clean.output / "reward_analysis.json").read_bytes())["runs"][0]["name"] == "builtin"


def test_two_jobs_share_an_evaluation_and_the_last_one_writes_the_report(tmp_path: Path) -> None:
    for shard in ("1/2", "2/2"):
        assert not (tmp_path / "out/reward_analysis.md").exists()
        with ng_eval(CONFIG, *SMALL, f"shard={shard}", cwd=tmp_path, output="out") as running:
            assert running.wait() == 0, running.printed
    assert len(read_rows(tmp_path / "out/rollouts.jsonl")) == 8
    assert "8 of 8" in running.printed
    assert {path.name for path in (tmp_path / "out/shards/2-of-2/logs").iterdir()} == LOGS
    assert not list((tmp_path / "out").glob("*.shard-*"))


def test_a_search_for_errors_in_the_logs_of_a_clean_run_finds_nothing(clean: EvalProcess, folder: Path) -> None:
    logs = [*(clean.output / "logs").iterdir(), *folder.glob(".rollyard/runs/*/logs/*.log")]
    assert logs
    assert not [line for log in logs for line in log.read_text().splitlines() if "error" in line.lower()]


def test_no_secret_is_in_the_files_of_a_run(clean: EvalProcess) -> None:
    files = [path for path in clean.output.rglob("*") if path.is_file()]
    assert not [path for path in files if b"a-secret-token" in path.read_bytes()]


def test_the_output_names_what_was_started_its_logs_and_the_result(clean: EvalProcess) -> None:
    named = ("grl_sokoban_game_agent", "4 tasks x 2 = 8", "out/logs/nemo_gym_servers.log", "success rate", "8 of 8")
    assert all(text in clean.printed for text in named)


def test_nothing_is_started_again_for_a_complete_evaluation(
    clean: EvalProcess, folder: Path, monkeypatch: pytest.MonkeyPatch, ng: Command
) -> None:
    monkeypatch.chdir(folder)
    before = (clean.output / "logs/nemo_gym_servers.log").stat().st_mtime_ns
    again = ng("ng_eval", "out/eval_config.yaml", "output_dir=out")
    assert (again.status, "8 of 8" in again.out) == (0, True), again.err
    assert (clean.output / "logs/nemo_gym_servers.log").stat().st_mtime_ns == before


def test_the_stored_config_continues_the_evaluation_from_any_folder(
    clean: EvalProcess, here: Path, ng: Command
) -> None:
    plan = ng("ng_eval", str(clean.output / "eval_config.yaml"), "+dry_run=true")
    assert (plan.status, f"folder     {clean.output}\n" in plan.out) == (0, True), plan.err


def test_a_folder_with_an_equals_sign_in_its_name_is_not_an_option(clean: EvalProcess, here: Path, ng: Command) -> None:
    shutil.copytree(clean.output, here / "lr=0.1")
    assert "8 of 8" in ng("ng_eval", "status", "lr=0.1").out
    plan = ng("ng_eval", "lr=0.1/eval_config.yaml", "+dry_run=true")
    assert (plan.status, "4 tasks x 2" in plan.out) == (0, True), plan.err
    watch = ("--watch", "lr=0.1", "environments=[gsm8k]", "output_dir=out", "vllm.command=[./vllm]", "+dry_run=true")
    (here / "vllm").touch(0o755)
    assert "watch      lr=0.1" in ng("ng_eval", *watch).out


def test_stopping_an_ended_evaluation_shows_its_state_and_pausing_it_is_refused(
    clean: EvalProcess, ng: Command
) -> None:
    stopped = ng("ng_eval", "stop", str(clean.output))
    assert (stopped.status, "state      complete" in stopped.out) == (0, True), stopped.err
    paused = ng("ng_eval", "pause", str(clean.output))
    assert (paused.status, "is not running" in paused.err) == (1, True)


def test_a_changed_evaluation_is_refused_with_the_differences(
    clean: EvalProcess, folder: Path, monkeypatch: pytest.MonkeyPatch, ng: Command
) -> None:
    monkeypatch.chdir(folder)
    files = {path: path.stat().st_mtime_ns for path in clean.output.rglob("*")}
    steps = "grl_sokoban_game_agent.responses_api_agents.game_agent.max_steps=9"
    for changed, difference in (
        ("num_repeats=3", r"num_repeats: 2 .* 3 "),
        ("responses_create_params.temperature=1", r"temperature: 0\.8 .* 1 "),
        (steps, r"max_steps: 10 .* 9 "),
    ):
        refused = ng("ng_eval", CONFIG, *SMALL, "output_dir=out", changed)
        assert refused.status == 2 and re.search(difference, refused.err), refused.err
    assert {path: path.stat().st_mtime_ns for path in clean.output.rglob("*")} == files


def test_a_failed_check_in_the_background_prints_the_error_and_no_json(tmp_path: Path) -> None:
    with ng_eval(CONFIG, "--detach", "num_repeats=1", "agent_name=a", cwd=tmp_path, output="out") as refused:
        assert refused.wait() == 2
    assert refused.printed.startswith("ng_eval: agent_name=a ") and "{" not in refused.printed


def test_what_is_odd_about_a_mixture_is_said_before_it_is_used(here: Path, ng: Command) -> None:
    data = f"data={{datasets: [{{name: rooms, path: {EXAMPLES}, count: 99}}]}}"
    given = ("model=builtin", "environments=[grl_sokoban]", data, "output_dir=out", "dry_run=true")
    planned = ng("ng_eval", *given)
    assert planned.status == 0, planned.err
    assert "note: dataset 'rooms': count is 99, but there are only 5 rows" in planned.out


BROKEN = """
from rollyard.records.errors import RunError
from rollyard.services.server.app import Server

class Broken(Server):
    async def start(self):
        raise RunError("the pool is down")

server = Broken
"""


async def test_a_further_attempt_names_the_rollouts_that_the_file_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector's own count is that of its last report: it may have written more before it was killed."""
    name = make_folder(tmp_path, app=BROKEN)
    (tmp_path / "rows.jsonl").write_text('{"responses_create_params": {"input": "Hi."}}\n' * 5)
    (tmp_path / "broken.yaml").write_text(
        f"broken: {{resources_servers: {{{name}: {{}}}}}}\n"
        "player: {agents: {simple_agent: {resources_server: {name: broken}, model_server: {name: policy_model}}}}\n"
    )
    monkeypatch.chdir(tmp_path)
    paths: dict[str, Any] = {"config_paths": ("broken.yaml",), "input_jsonl_fpath": "rows.jsonl"}
    limits: dict[str, Any] = {"num_repeats": 1, "max_attempts": 2, "pause_s": 0}
    config = EvalConfig(model="builtin", output_dir=tmp_path / "out", colocate=True, **paths, **limits)

    class Observer:
        lines: ClassVar[list[str]] = []

        def print_line(self, text: str) -> None:
            self.lines.append(text)
            if "servers" in text:  # what a collector of the first attempt wrote
                (tmp_path / "out" / "rollouts.jsonl").write_text("{}\n" * 3)

        def show(self, status: CollectionStatus) -> None: ...
        def collection_ended(self) -> None: ...

    result = await evaluate(config, environ=os.environ, here=tmp_path, observer=Observer())
    assert "attempt 2 of 2, 3 of 5 rollouts so far" in Observer.lines
    assert (result.state, result.measured) == ("failed", 3)
