"""ng_submit without AWS: dry runs, local runs, mistakes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import BIN, Finished, in_this_process

Submit = Callable[..., Finished]
TRAIN = ("configs/a.yaml", "--entrypoint", "train.py")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in a folder with a blank in its name; no credentials, no network."""
    folder = tmp_path / "my project"
    (folder / "configs").mkdir(parents=True)
    (folder / "pyproject.toml").touch()
    (folder / "sagemaker.yaml").write_text(
        "account: '503561457547'\nregion: us-west-2\nrole: R\nprefix: rlvr-experiments\n"
    )
    (folder / "empty.yaml").touch()
    (folder / "configs/a.yaml").write_text("model: {path: Qwen/Qwen3-1.7B}\n")
    (folder / "configs/source.yaml").write_text("model: {path: a/b, source: x}\n")
    (folder / "configs/my_eval.v2.yaml").write_text("seed: 1\n")
    (folder / "train.py").write_text("import sys; print(sys.argv[1:], flush=True); sys.exit(4)\n")
    monkeypatch.chdir(folder)
    for name in [name for name in os.environ if name.startswith(("AWS_", "ROLLYARD_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    return folder


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def submit(project: Path, capsys: pytest.CaptureFixture[str]) -> Submit:
    """Runs ng_submit in the project."""
    return lambda *words: in_this_process("ng_submit", *words, capsys=capsys)


def request_of(done: Finished) -> dict[str, Any]:
    assert done.status == 0, done.err
    request: dict[str, Any] = json.loads(done.out.partition("sagemaker:CreateTrainingJob ")[2])
    return request


def test_a_dry_run_shows_every_call_and_file_and_touches_nothing(project: Path, submit: Submit) -> None:
    before = files(project)
    done = submit(
        *(*TRAIN, "--build", "--push", "--dry-run", "--image-tag", "t", "--instance-count", "2"),
        *("--eval-config", "configs/my_eval.v2.yaml", "--eval-entrypoint", "train.py"),
    )
    request = request_of(done)
    assert files(project) == before
    image = "503561457547.dkr.ecr.us-west-2.amazonaws.com/rollyard:t"
    calls = ("ecr:CreateRepository", "s3:HeadBucket", "ecr:BatchGetImage", "s3:PutObject")
    for text in (f"$ docker push {image}", "  configs/a.yaml\n", *calls):
        assert text in done.out
    assert request["RoleArn"] == "arn:aws:iam::503561457547:role/R"
    assert request["AlgorithmSpecification"]["TrainingImage"] == image
    assert request["ResourceConfig"] == {"InstanceType": "ml.p4de.24xlarge", "InstanceCount": 2, "VolumeSizeInGB": 100}
    assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 432000}
    assert request["Environment"]["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    bucket = "s3://sagemaker-us-west-2-503561457547/rlvr-experiments"
    assert request["OutputDataConfig"] == {"S3OutputPath": f"{bucket}/output/"}
    job, given = request["TrainingJobName"], request["HyperParameters"]
    assert given["sagemaker_submit_directory"] == f"{bucket}/source/{job}/sourcedir.tar.gz"
    assert (given["config"], given["eval-config"]) == ("configs/a.yaml", "configs/my_eval.v2.yaml")
    assert (given["train-gpus"], given["eval-gpus"]) == ("0,1,2,3,4,5", "6,7")


def test_a_dry_run_hides_the_values_of_secret_variables(project: Path, submit: Submit) -> None:
    settings = project.parent / "secret.yaml"
    settings.write_text("role: R\nenvironment: {WANDB_API_KEY: real-value-123, HF_HOME: /tmp/hf}\n")
    done = submit(*TRAIN, "--dry-run", "--settings", str(settings))
    assert "real-value-123" not in done.out and '"WANDB_API_KEY": "(hidden)"' in done.out and "/tmp/hf" in done.out


def test_an_evaluation_has_its_own_defaults_and_a_valid_name(submit: Submit) -> None:
    request = request_of(submit("eval", "configs/my_eval.v2.yaml", "--entrypoint", "train.py", "--dry-run"))
    assert request["TrainingJobName"].startswith("eval-my-eval-v2-")
    assert request["ResourceConfig"]["InstanceType"] == "ml.g6e.48xlarge"
    assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 86400}
    assert request["Environment"]["HF_ALLOW_CODE_EVAL"] == "1"
    assert request["OutputDataConfig"]["S3OutputPath"].endswith("/eval_output/")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("configs/none.yaml --entrypoint train.py", "configs/none.yaml"),
        ("/etc/hostname --entrypoint train.py", "/etc/hostname"),
        ("empty.yaml --entrypoint train.py", "empty.yaml is not"),
        ("train.py --entrypoint train.py", "train.py is not"),
        ("configs/source.yaml --entrypoint train.py", "model.source is 'x'; expected auto"),
        ("configs/a.yaml --entrypoint none.py", "none.py"),
        ("configs/a.yaml --entrypoint ../outside.py", "../outside.py"),
        ("configs/a.yaml --entrypoint train.py --job-name a_b", "job name 'a_b'"),
        ("configs/a.yaml --instance x", "unrecognized arguments: --instance"),
        ("configs/a.yaml --gpus 0", "--gpus is for --local"),
        ("configs/a.yaml --local --gpus 0,0", "0,0"),
        ("configs/a.yaml --local --gpus 0;ls", "0;ls"),
        ("configs/a.yaml --instance-count 0", "0 is not an integer"),
        ("configs/a.yaml --entrypoint train.py --settings empty.yaml", "role"),
        ("", "no config"),
        ("status", "lists no jobs"),
        ("configs/a.yaml --entrypoint train.py --eval-config configs/a.yaml --eval-gpus 5", "GPU 5 is in both"),
        ("+instance_typ=x", "did you mean '+instance_type'"),
        ("configs/a.yaml +instance_typ=x", "did you mean '+instance_type'"),
    ],
)
def test_a_mistake_is_one_line(submit: Submit, line: str, message: str) -> None:
    done = submit(*line.split())
    problem, hint = done.err.splitlines()
    assert done.status == 2 and message in problem and hint == "Try 'ng_submit --help'."


def test_missing_credentials_are_one_line_and_the_policy_comes_without_them(project: Path, submit: Submit) -> None:
    (project / "sagemaker.yaml").write_text("region: us-west-2\nrole: R\n")
    done = submit(*TRAIN)
    [line] = done.err.splitlines()
    assert done.status == 1 and line.startswith("ng_submit: ") and line.endswith(" AWS_PROFILE")
    done = submit("--print-iam")
    assert done.status == 0
    assert json.loads(done.out)["Statement"][1]["Resource"] == "arn:aws:ecr:us-west-2:ACCOUNT:repository/rollyard"


def test_a_local_run_starts_the_program_and_passes_its_status_on(project: Path) -> None:
    words = [str(BIN / "ng_submit"), *TRAIN, "--local"]
    done = subprocess.run(words, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    assert done.stdout.splitlines()[-1] == f"['{project}/configs/a.yaml']"


def test_gpus_need_docker(project: Path, submit: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(project))
    words = (*TRAIN, "--local", "--gpus", "0,1")
    done = submit(*words)
    assert (done.status, "needs docker" in done.err) == (2, True)
    shown = submit(*words, "--dry-run").out
    assert shown.startswith("$ docker run --rm")
    assert """'"device=0,1"'""" in shown and f"'{project}:/opt/ml/code'" in shown
