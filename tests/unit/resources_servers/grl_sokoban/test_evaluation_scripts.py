"""The scripts of the evaluation and its analysis command, typed as documented.

Environment variables reach ng_eval unchanged, and nothing is ended by name.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import orjson
import pandas as pd
import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.grl_sokoban.analyze_rewards import main
from rollyard.resources_servers.grl_sokoban.run_evaluation import overrides, settings
from rollyard.services.config.overrides import parse_overrides
from tests.support.rollout_files import random_rows, write, write_manifest

from .reference import ROOT

FOLDER = ROOT / "resources_servers" / "grl_sokoban"
SCRIPTS = sorted(FOLDER.glob("run_*.sh"))

FAKE = """#!/usr/bin/env bash
printf '%s\\0' "$PWD" "$MODEL_NAME" "$TENSOR_PARALLEL_SIZE" "$GPU_MEMORY_UTILIZATION" \\
    "${MAX_ATTEMPTS-none}" "${PAUSE_S-none}" "$@"
exit 7
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """PATH with an `ng_eval`, and beside it a `python` that prints what it gets and exits with status 7."""
    folder = tmp_path / "an environment" / "bin"
    folder.mkdir(parents=True)
    for name in ("ng_eval", "python"):
        (folder / name).write_text(FAKE)
        (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin"


def run(script: Path, path: str, cwd: Path, *arguments: str, **variables: str) -> list[str]:
    environ = {"PATH": path, **variables}
    done = subprocess.run([str(script), *arguments], cwd=cwd, env=environ, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (7, b"")
    return done.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize("model", ["a model", "$(touch pwned)", "a'b\"\n\\${HOME}`id`", "a,b=[c]", "007", "-x", "ü"])
def test_a_model_name_arrives_as_given(path: str, tmp_path: Path, model: str) -> None:
    printed = run(SCRIPTS[0], path, tmp_path, "key=a b", MODEL_NAME=model)
    assert printed[1] == model and printed[-1] == "key=a b"
    parsed = parse_overrides(overrides(settings({"MODEL_NAME": model}, tmp_path)))
    assert [override.value for override in parsed if override.key == "model"] == [f"vllm/{model}"]
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("run_qwen3_4b_eval.sh", ["Qwen/Qwen3-4B", "1", "0.85", "none", "none"]),
        ("run_qwen3_4b_eval_loop.sh", ["Qwen/Qwen3-4B", "1", "0.85", "20", "10"]),
        ("run_qwen3_30b_eval.sh", ["Qwen/Qwen3-30B-A3B", "4", "0.9", "none", "none"]),
        ("run_qwen3_30b_eval_loop.sh", ["Qwen/Qwen3-30B-A3B", "4", "0.9", "20", "10"]),
    ],
)
def test_each_script_runs_from_any_folder_and_through_links(
    path: str, tmp_path: Path, script: str, expected: list[str]
) -> None:
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    (elsewhere / "link").symlink_to(FOLDER / script)
    for program in (FOLDER / script, elsewhere / "link"):
        printed = run(program, path, elsewhere, "limit=5")
        assert printed[:6] == [str(elsewhere), *expected]
        folder = script.removeprefix("run_").removesuffix(".sh").removesuffix("_loop")
        assert printed[6:] == ["-P", str(FOLDER / "run_evaluation.py"), folder, "limit=5"]


def test_without_rollyard_a_script_says_what_to_do(tmp_path: Path) -> None:
    copied = tmp_path / "run.sh"
    copied.write_bytes((FOLDER / "run_qwen3_4b_eval.sh").read_bytes())
    done = subprocess.run(["bash", copied], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "ng_eval" in done.stderr and "make setup" in done.stderr and len(done.stderr.splitlines()) == 1


def test_no_script_ends_processes_by_name() -> None:
    assert len(SCRIPTS) == 4
    for script in [*SCRIPTS, FOLDER / "run_evaluation.py", ROOT / "clear_gpu_cache.py"]:
        text = script.read_text()
        assert not any(word in text for word in ("pkill", "killall", "ray stop", "os.kill")), script


def test_an_endpoint_is_used_instead_of_vllm(tmp_path: Path) -> None:
    found = settings({"MODEL_NAME": "m", "policy_base_url": "http://127.0.0.1:1/v1", "NUM_REPEATS": "2"}, tmp_path)
    assert (found["model"], found["policy_base_url"], found["num_repeats"]) == ("m", "http://127.0.0.1:1/v1", 2)
    assert not any(key.startswith("vllm.") for key in found)


def test_a_number_that_is_none_is_named_with_its_variable(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"TENSOR_PARALLEL_SIZE.*'two'"):
        settings({"MODEL_NAME": "m", "TENSOR_PARALLEL_SIZE": "two"}, tmp_path)


def lines(name: str) -> list[Json]:
    return [orjson.loads(line) for line in (FOLDER / "data" / "qwen3_4b_eval" / name).read_bytes().splitlines()]


def test_the_committed_input_is_the_start_of_the_500_rows() -> None:
    everything = lines("test_examples.jsonl")
    assert len(everything) == 500 and everything[:200] == lines("test_examples_200.jsonl")


def test_the_cache_script_names_the_processes_that_hold_memory_and_succeeds_without_a_gpu(tmp_path: Path) -> None:
    def printed() -> str:
        command = [sys.executable, str(ROOT / "clear_gpu_cache.py")]
        return subprocess.check_output(command, env={"PATH": f"{tmp_path}:/bin"}, text=True)

    smi = tmp_path / "nvidia-smi"
    smi.write_text('#!/bin/sh\ncase $1 in *gpu*) echo "0, H200, 1000, 143771";; *) echo "42, python, 990";; esac\n')
    smi.chmod(0o755)
    gpu, process = printed().splitlines()[:2]
    assert {"0", "(H200):", "1000", "143771"} <= {*gpu.split()}
    assert {"42", "(python)", "990"} <= {*process.split()}
    smi.unlink()
    assert "nothing to clear" in printed()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"MODEL_NAME": "Qwen/Qwen3-4B"}, ".cache/"),
        ({"MODEL_NAME": "Qwen/Qwen3-4B", "HF_HOME": "/mine"}, "/mine"),
        ({"MODEL_NAME": "builtin"}, ""),
        ({"MODEL_NAME": "m", "policy_base_url": "http://127.0.0.1:1/v1"}, ""),
    ],
)
def test_the_weights_of_a_served_model_are_cached_in_the_working_directory(
    variables: dict[str, str], expected: str, path: str, tmp_path: Path
) -> None:
    program = Path(path.partition(os.pathsep)[0]) / "ng_eval"
    program.write_text('#!/bin/sh\nprintf %s "$HF_HOME"\n')
    code = "from rollyard.resources_servers.grl_sokoban import run_evaluation as r; r._ng_eval = lambda: "
    command = [sys.executable, "-c", f"{code}{str(program)!r}; r.main([])"]
    environ = {"PATH": path, **variables}
    assert subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True).stdout == expected


def test_the_documented_analysis_command_of_the_grl_sokoban_evaluation_works(tmp_path: Path) -> None:
    rows = random_rows(20, 8)
    path = write(tmp_path / "data" / "rollouts.jsonl", rows)
    write_manifest(path, 20, 9)
    output = tmp_path / "out" / "reward_analysis.md"
    flags = ["--rollouts-path", str(path), "--model-name", "Qwen3-4B", "--output", str(output)]
    command = [sys.executable, "analyze_rewards.py", *flags]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = output.read_text()
    frame = pd.DataFrame(
        {
            "reward": row["reward"],
            "won": row["success"],
            "calls": sum(item["type"] == "function_call" for item in row["response"]["output"]),
        }
        for row in rows
    )
    assert "# Reward analysis: Qwen3-4B\n" in report
    assert "- **Total Rollouts**: 160 (160 of 180 measured)" in report
    assert f"- **Success Rate**: {frame.won.mean():.2%} ({frame.won.sum()} / 160)" in report
    for name in ("Mean", "Median", "Min", "Max"):
        assert f"- **{name} Reward**: {getattr(frame.reward, name.lower())():.4f}" in report
    assert f"- **Average Tool Calls**: {frame.calls.mean():.2f} per rollout" in report
    assert f"- **Correlation (tool calls ↔ reward)**: {frame.calls.corr(frame.reward):.4f}" in report
    most, times = next(iter(frame.reward.value_counts().items()))
    assert re.search(rf"- \*\*-?[\d.]+ reward\*\*: {times} occurrences \({times / 160:.1%}\)", report), most
    for count, group in frame.groupby("calls"):
        assert f"| {count} | {group.reward.mean():.4f} | {len(group)} |" in report


def test_without_an_output_the_analysis_goes_to_the_terminal_and_no_rollouts_have_exit_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "rollouts.jsonl", [{"reward": 1.0, "response": {"output": []}}])
    assert main(["--rollouts-path", str(path)]) == 0
    assert "- **Total Rollouts**: 1 (1 measured)" in capsys.readouterr().out
    path.write_bytes(b"")
    assert main(["--rollouts-path", str(path)]) == 1
    report = capsys.readouterr()
    assert str(path) in report.out + report.err
