"""Whole jobs: submitted, run as real processes, their files in S3."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import orjson
import pytest
import yaml

from rollyard.records.data_files import INSTALLED
from tests.external.aws.account import TAG, Account
from tests.unit.records.test_columns import save_to_disk
from tests.unit.training.test_rlvr import CONFIG as RLVR_CONFIG

SUBMIT = ("configs/small.yaml", "--entrypoint", "train.py", "--image-tag", TAG)
FAST = ("--poll-interval", "0.2")


def last_job(project: Path) -> str:
    return (project / "docs/job_log.md").read_text().splitlines()[-1].split("|")[1].strip()


@pytest.mark.smoke
def test_a_submitted_job_runs_and_its_checkpoints_and_traces_are_in_s3(account: Account, project: Path) -> None:
    with (project / "configs/small.yaml").open("a") as config:
        config.write("run: {name: mixed}\n")  # test_two_hosts has no name, and gets that of the config and the time
    done = account.ng_submit(project, *SUBMIT, "--wait", *FAST, "--description", "a|b\nc $(touch x)")
    assert done.returncode == 0, done.stdout + done.stderr
    job = last_job(project)
    line = (project / "docs/job_log.md").read_text().splitlines()[-1]
    assert f"| {job} | configs/small.yaml | a\\|b c $(touch x) | " in line
    keys = account.keys(f"checkpoints/{job}/")
    assert {f"mixed_step{step}/{name}" for step in (1, 2) for name in ("COMPLETE.json", "model.safetensors")} < set(
        keys
    )
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


def test_the_policy_of_print_iam_allows_all_that_submitting_following_and_stopping_call(
    account: Account, project: Path
) -> None:
    env = {"AWS_SDK_UA_APP_ID": "submitter"}
    printed = account.ng_submit(project, "--print-iam", env=env)
    allowed = {action for one in json.loads(printed.stdout)["Statement"] for action in one["Action"]}
    for typed in ((*SUBMIT, "--wait", *FAST), ("status",), ("configs/small.yaml", "--image-tag", "absent")):
        account.ng_submit(project, *typed, env=env)
    with (project / "sagemaker.yaml").open("a") as settings:
        settings.write("container_entrypoint: []\n")  # the job never ends by itself
    account.ng_submit(project, *SUBMIT, env=env)
    account.ng_submit(project, "stop", env=env)
    account.fail("SageMaker.CreateTrainingJob", 400, '{"__type": "ResourceLimitExceeded"}', times=1)
    account.ng_submit(project, *SUBMIT, env=env)  # removes its source bundle again
    called = account.actions("submitter")
    assert {"ecr:BatchGetImage", "s3:DeleteObject", "sagemaker:StopTrainingJob", "logs:GetLogEvents"} <= called
    assert called - allowed - {"sts:POST"} == set()  # GetCallerIdentity needs no permission


def test_a_training_job_reads_its_data_set_from_the_projects_folder_in_s3(account: Account, project: Path) -> None:
    shutil.copytree(INSTALLED / "examples/drop_in/entrypoints", project / "entrypoints")
    config = RLVR_CONFIG | {"model": {"path": str(project)}, "tokenizer": {}}
    (project / "configs/small.yaml").write_text(yaml.safe_dump(config))
    rows = [{"question": f"What is {number} + 1?", "answer": f"#### {number + 1}"} for number in range(3)]
    for file in save_to_disk(project.parent / "saved", rows).iterdir():
        account.put(f"datasets/gsm8k_train/{file.name}", file.read_bytes())
    words = ("configs/small.yaml", "--entrypoint", "entrypoints/train_grpo.py", "--image-tag", TAG)
    done = account.ng_submit(project, *words, "--model-source", "local", "--wait", *FAST)
    run = RLVR_CONFIG["run"]["name"]
    assert re.search(rf"\[program\] 3 rows -> \S+/{run}/output\.data/gsm8k_train\.jsonl", done.stdout), done.stdout
    assert "ended with exit status 2: ng_train: " in done.stdout + done.stderr  # the model's folder is empty
