"""Runs a job's program on this host, in its image or directly."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rollyard.launchers.sagemaker.docker import run_command
from rollyard.launchers.sagemaker.job_parameters import PROGRAM, JobParameters
from rollyard.records.errors import OperatorError

OUTPUT = "training_output"
"""Folder in the project for what a local run writes as a job."""


def container_command(image: str, project: Path, gpus: str, parameters: JobParameters) -> list[str]:
    """Return the `docker run` command that runs the job in its image."""
    words = [word for name, value in parameters.hyperparameters().items() for word in (f"--{name}", value)]
    environment = {"SM_NUM_GPUS": str(len(gpus.split(","))), "TRAINING_JOB_NAME": "local"}
    return run_command(image, project, gpus, environment, ["python", "-m", PROGRAM, *words])


def direct_command(project: Path, parameters: JobParameters) -> list[str]:
    """Return the program itself, with the config as it is; an evaluation next to training needs the job's entry."""
    if parameters.eval_config is not None:
        words = [word for name, value in parameters.hyperparameters().items() for word in (f"--{name}", value)]
        return [sys.executable, "-m", PROGRAM, *words]
    words = [word.replace("{config}", str(project / (parameters.config or ""))) for word in parameters.command]
    if any("{" + name + "}" in word for word in words for name in ("checkpoints", "run_dir")):
        raise OperatorError("a program that uses {checkpoints} or {run_dir} needs --gpus or --eval-config")
    return [sys.executable if words[0] == "python" else words[0], *words[1:]]


def local_environment(project: Path, environ: Mapping[str, str], parameters: JobParameters) -> dict[str, str]:
    """Return the environment of `direct_command`: the job's folders are below training_output."""
    if parameters.eval_config is None:
        return dict(environ)
    root = project / OUTPUT
    (root / "code").parent.mkdir(parents=True, exist_ok=True)
    if not (root / "code").exists():
        (root / "code").symlink_to(project)
    return {**environ, "ROLLYARD_SAGEMAKER_ROOT": str(root), "TRAINING_JOB_NAME": "local"}


def run(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> int:
    """Run a command in the foreground and return its exit status. Ctrl-C is the command's."""
    try:
        before = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            process = subprocess.Popen(command, cwd=folder, env=dict(environment) if environment is not None else None)
            status = process.wait()
        finally:
            signal.signal(signal.SIGINT, before)
    except OSError as error:
        raise OperatorError(
            f"{command[0]} cannot be run: {error.strerror}; pass another program with --entrypoint"
        ) from error
    return 128 - status if status < 0 else status
