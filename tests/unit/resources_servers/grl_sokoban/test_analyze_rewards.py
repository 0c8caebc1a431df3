"""The analysis command of the GRL Sokoban evaluation (step 4), typed as documented there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from rollyard.records.search_path import INSTALLED
from rollyard.resources_servers.grl_sokoban.analyze_rewards import main
from tests.support.rollout_files import random_rows, write, write_manifest


def test_the_documented_analysis_command_of_the_grl_sokoban_evaluation_works(tmp_path: Path) -> None:
    rows = random_rows(20, 8)
    path = write(tmp_path / "data" / "rollouts.jsonl", rows)
    write_manifest(path, 20, 9)
    output = tmp_path / "out" / "reward_analysis.md"
    flags = ["--rollouts-path", str(path), "--model-name", "Qwen3-4B", "--output", str(output)]
    command = [sys.executable, "analyze_rewards.py", *flags]
    done = subprocess.run(command, cwd=INSTALLED / "resources_servers/grl_sokoban", capture_output=True, text=True)
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
