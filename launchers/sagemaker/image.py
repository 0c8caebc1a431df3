"""The job's image: checks that its tag exists in ECR, builds and pushes it, and runs a job's program on this host."""

from __future__ import annotations

import base64
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollyard.launchers.sagemaker.job_parameters import PROGRAM, JobParameters
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.s3 import AwsError, aws_errors

_ECR_HOST = re.compile(r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")
_RECENT = 3


@dataclass(frozen=True)
class EcrImage:
    ecr: Any
    repository: str
    tag: str

    def check(self) -> None:
        """Raise RunError if the tag does not exist. The message names the newest tags."""
        try:
            with aws_errors(f"image {self.repository}:{self.tag} cannot be checked"):
                # Pulling needs the same permission, so that policies for building and submitting have it.
                found = self.ecr.batch_get_image(repositoryName=self.repository, imageIds=[{"imageTag": self.tag}])
        except AwsError as error:
            if error.code != "RepositoryNotFoundException":
                raise
            raise RunError(f"the ECR repository {self.repository} does not exist; --build --push creates it") from error
        if not found["images"]:
            raise RunError(
                f"the ECR repository {self.repository} has no image with the tag {self.tag} ({self._known_tags()}). "
                "Pass --image-tag, or --build --push to push a new one"
            )

    def create_repository(self) -> bool:
        """Create the repository unless it exists; return whether it was created."""
        try:
            with aws_errors(f"the ECR repository {self.repository} cannot be created"):
                self.ecr.create_repository(repositoryName=self.repository)
        except AwsError as error:
            if error.code != "RepositoryAlreadyExistsException":
                raise
            return False
        return True

    def sign_in(self, docker: Docker, registry: str) -> None:
        """Sign Docker in to a registry. The password is passed on standard input, so that no process list shows it."""
        match = _ECR_HOST.fullmatch(registry)
        accounts: Mapping[str, Any] = {"registryIds": [match[1]]} if match else {}
        with aws_errors(f"no authorization token for {registry}"):
            data = self.ecr.get_authorization_token(**accounts)["authorizationData"][0]
        user, _, password = base64.b64decode(data["authorizationToken"]).decode().partition(":")
        command = ["docker", "login", "--username", user, "--password-stdin", registry]
        docker.run(command, input=password, capture_output=True)

    def _known_tags(self) -> str:
        try:
            with aws_errors(f"the images of {self.repository} cannot be listed"):
                pages = self.ecr.get_paginator("describe_images").paginate(repositoryName=self.repository)
                images = [image for page in pages for image in page["imageDetails"] if image.get("imageTags")]
        except AwsError as error:
            return f"its tags cannot be listed: {error.code}"
        images.sort(key=lambda image: str(image.get("imagePushedAt", "")), reverse=True)
        tags = [tag for image in images for tag in image["imageTags"]][:_RECENT]
        return f"the newest are {', '.join(tags)}" if tags else "it has no images"


def registry_of(image: str) -> tuple[str, str] | None:
    """Return host and region of the ECR registry of an image; None if it is in another registry."""
    host = image.partition("/")[0]
    match = _ECR_HOST.fullmatch(host)
    return (host, match[2]) if match else None


def build_command(project: Path, dockerfile: str, image: str, base_image: str | None) -> list[str]:
    """Return the command that builds the image without Docker's cache."""
    base = ["--build-arg", f"BASE={base_image}"] if base_image else []
    # Only root can write to SageMaker's folders. A Dockerfile without this argument ignores it.
    user = ["--build-arg", "RUN_AS=0:0"]
    return ["docker", "build", "--no-cache", *base, *user, "-t", image, "-f", str(project / dockerfile), str(project)]


@dataclass(frozen=True)
class Docker:
    print_line: Callable[[str], None]

    def require(self, needed_for: str) -> None:
        """Raise OperatorError if there is no docker program."""
        if shutil.which("docker") is None:
            raise OperatorError(
                f"{needed_for} needs docker, which is not installed on this host (or not in PATH). `--local` "
                "without --gpus runs the program directly"
            )

    def run(self, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command, whose output goes to the terminal without `options`. Raises RunError if it fails."""
        self.print_line(shown(command))
        try:
            done = subprocess.run(command, text=True, check=False, **options)
        except OSError as error:
            raise RunError(f"{command[0]} cannot be run: {error.strerror}") from error
        if done.returncode:
            reason = done.stderr.strip().partition("\n")[0] if done.stderr else "its output is above"
            raise RunError(f"`{' '.join(command[:2])}` failed with exit status {done.returncode}; {reason}")
        return done


def shown(command: Sequence[str]) -> str:
    """Format a command for display, quoted as a shell needs it."""
    return "$ " + shlex.join(command)


OUTPUT = "training_output"


def container_command(image: str, project: Path, gpus: str, parameters: JobParameters) -> list[str]:
    """Return the `docker run` command that runs the job in its image, on the given GPUs.

    The project is mounted at /opt/ml/code and at its own path, so that absolute paths in configs are valid.
    """
    mounts = ((project, "/opt/ml/code"), (project, project), (project / OUTPUT, "/opt/ml/model"))
    return [
        # Docker parses --gpus as CSV: the quotes keep `0,1` one value.
        *("docker", "run", "--rm", "--init", "--ipc=host", "--gpus", f'"device={gpus}"'),
        *(word for host, inside in mounts for word in ("-v", f"{host}:{inside}")),
        *("-w", "/opt/ml/code", "-e", f"SM_NUM_GPUS={len(gpus.split(','))}", "-e", "TRAINING_JOB_NAME=local", image),
        *("python", "-m", PROGRAM, *_words(parameters)),
    ]


def _words(parameters: JobParameters) -> list[str]:
    return [word for name, value in parameters.hyperparameters().items() for word in (f"--{name}", value)]


def direct_command(project: Path, parameters: JobParameters) -> list[str]:
    """Return the program itself, with the config as it is; an evaluation next to training needs the job's entry."""
    if parameters.eval_config is not None:
        return [sys.executable, "-m", PROGRAM, *_words(parameters)]
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


def run_in_foreground(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> int:
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
