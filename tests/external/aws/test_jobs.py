"""Whole jobs: submitted, run as real processes, their files in S3."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import pytest

from tests.external.aws.account import TAG, Account

SUBMIT = ("configs/small.yaml", "--entrypoint", "train.py", "--image-tag", TAG)
FAST = ("--poll-interval", "0.2")


def last_job(project: Path) -> str:
    return (project / "docs/job_log.md").read_text().splitlines()[-1].split("|")[1].strip()


@pytest.mark.smoke
def test_a_submitted_job_runs_and_its_checkpoints_and_traces_are_in_s3(account: Account, project: Path) -> None:
    done = account.ng_submit(project, *SUBMIT, "--wait", *FAST, "--description", "a|b\nc $(touch x)")
    assert done.returncode == 0, done.stdout + done.stderr
    job = last_job(project)
    line = (project / "docs/job_log.md").read_text().splitlines()[-1]
    assert f"| {job} | configs/small.yaml | a\\|b c $(touch x) | " in line
    run = f"small_{job.removeprefix('annotations-adhoc-')}"
    keys = account.keys(f"checkpoints/{job}/")
    for step in (1, 2):
        assert f"{run}_step{step}/COMPLETE.json" in keys
        assert f"{run}_step{step}/model.safetensors" in keys
    trace = account.read(f"checkpoints/{job}/traces/trace.jsonl").splitlines()
    assert [orjson.loads(row)["ts"] for row in trace] == [1, 2]
    assert "logs/program.log" in keys
    assert "[program] step 2" in done.stdout and "Completed" in done.stdout


def test_checkpoints_are_evaluated_next_to_the_training_and_the_table_is_in_s3(account: Account, project: Path) -> None:
    fake = Path(__file__).parents[2] / "support" / "fake_vllm.py"
    notes = project.parent / "notes"
    notes.mkdir()
    (project / "configs/small.yaml").write_text("model: {path: Qwen/Qwen3-1.7B}\n")
    (project / "evals").mkdir()
    (project / "evals/small.yaml").write_text(  # the same name as the training's config
        f"environments: [gsm8k]\nlimit: 1\ncolocate: true\npause_s: 0\nvllm:\n  command: [{sys.executable}, {fake}]\n"
    )
    with (project / "sagemaker.yaml").open("a") as settings:
        settings.write(f"environment: {{FAKE_NOTES: {notes}}}\n")
    combined = ("--eval-config", "evals/small.yaml", "--train-gpus", "0,1", "--eval-gpus", "7")
    done = account.ng_submit(project, *SUBMIT, *combined, "--wait", *FAST)
    assert done.returncode == 0, done.stdout + done.stderr
    job = last_job(project)
    assert "[train] step 1 0,1" in done.stdout
    assert "| 1 | step_1 | 1 of 1 |" in account.read(f"checkpoints/{job}/output/checkpoints.md").decode()
    assert "output/step_1/rollouts.jsonl" in account.keys(f"checkpoints/{job}/")
