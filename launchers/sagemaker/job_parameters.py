"""What a SageMaker job is told: its hyperparameters (JobParameters), and its hosts and folders (JobEnvironment).

A submission writes the hyperparameters, and the container reads both. `command_of` chooses the job's program;
`write_failure` tells SageMaker why the job failed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rollyard.records.errors import OperatorError
from rollyard.records.gpus import visible_gpus
from rollyard.records.types import Record
from rollyard.services.server.settings import parse_settings

MAX_VALUE_LENGTH = 2500
PROGRAM = "rollyard.launchers.sagemaker.container"
_LISTS = ("command", "eval_command", "final_eval_command", "ray_args")


class JobParameters(Record):
    """What runs inside a job. The names with hyphens instead of underscores are the hyperparameters' names."""

    config: str | None = None
    """Path of the config in the source bundle."""
    eval_config: str | None = None
    """Config of an evaluation that runs next to training, on `eval_gpus`."""
    train_gpus: str | None = None
    eval_gpus: str | None = None
    command: tuple[str, ...] = ()
    """The program; `{config}` is replaced by the path of the rewritten config, `{checkpoints}` by their folder."""
    eval_command: tuple[str, ...] = ()
    final_eval_command: tuple[str, ...] = ()
    model_source: str | None = None
    ray: Literal["auto", "always", "never"] = "auto"
    """When a Ray cluster is started: `auto` means for several hosts."""
    ray_args: tuple[str, ...] = ()
    s3: str | None = None
    """s3://bucket/prefix of models, data and uploads; None: nothing is uploaded."""
    upload_interval_s: float = 15.0
    upload: Literal["checkpoints", "eval_output"] = "checkpoints"
    """The folder below `s3` that gets the files of the job."""
    sagemaker_program: str = PROGRAM
    sagemaker_submit_directory: str | None = None

    def hyperparameters(self) -> dict[str, str]:
        """Return the hyperparameters. Raises OperatorError if a value is too long for SageMaker."""
        defaults = JobParameters()
        values: dict[str, str] = {}
        for name, value in self:
            if value == getattr(defaults, name) and name != "sagemaker_program":
                continue
            key = name if name.startswith("sagemaker_") else name.replace("_", "-")
            values[key] = json.dumps(value) if name in _LISTS else str(value)
            if len(values[key]) > MAX_VALUE_LENGTH:
                raise OperatorError(
                    f"{key} has {len(values[key])} characters; SageMaker accepts at most {MAX_VALUE_LENGTH}. Put long "
                    "arguments into the config"
                )
        return values

    @classmethod
    def parse(cls, hyperparameters: Mapping[str, str]) -> JobParameters:
        """Parse hyperparameters. SageMaker's SDK encodes strings as JSON, other clients do not."""
        values: dict[str, object] = {}
        for key, text in hyperparameters.items():
            name = key.replace("-", "_")
            if name not in cls.model_fields:
                continue  # such as sagemaker_region, which SageMaker's tools add
            quoted = name in _LISTS or text.startswith('"')
            try:
                values[name] = json.loads(text) if quoted else text
            except ValueError as error:
                raise OperatorError(f"the hyperparameter {key} is {text!r}, expected JSON") from error
        return parse_settings(cls, values, "hyperparameters")


def command_of(entrypoint: str | None, default: Sequence[str], project: Path, config: str | None) -> tuple[str, ...]:
    """Return the program and its arguments. `entrypoint`: a .py or .sh file of the project, or a program of the image.

    Raises OperatorError if the file does not exist, or if this version of Rollyard has no such command.
    """
    given = ("{config}",) if config is not None else ()
    if entrypoint is None:
        if not default:
            raise OperatorError("no program is set; pass --entrypoint")
        name = default[0]
        if name.startswith("ng_") and not entry_points(group="console_scripts", name=name):
            raise OperatorError(
                f"this version of Rollyard has no {name}; pass the program with --entrypoint, such as "
                "--entrypoint entrypoints/train.py"
            )
        script = next((word for word in default[1:2] if word.endswith((".py", ".sh"))), None)
        if script is not None and not _is_in(project, script):
            raise OperatorError(
                f"the settings' program {script} is not in the project {project}; add it, or pass another program with "
                "--entrypoint"
            )
        return tuple(default)
    if entrypoint.endswith((".py", ".sh")):
        if not _is_in(project, entrypoint):
            raise OperatorError(f"--entrypoint {entrypoint}: there is no such file in the project {project}")
        return ("python" if entrypoint.endswith(".py") else "bash", entrypoint, *given)
    return (entrypoint, *given)


def _is_in(project: Path, script: str) -> bool:
    """Return whether the job gets this path: it is relative, stays in the project, and a file is there."""
    inside = not os.path.isabs(script) and not os.path.normpath(script).startswith("..")  # noqa: PTH117
    return inside and (project / script).is_file()


def scripts_of(*commands: Sequence[str]) -> list[str]:
    """Return the project's files that the commands run."""
    return [command[1] for command in commands if command[1:2] and command[1].endswith((".py", ".sh"))]


SAGEMAKER_ROOT = Path("/opt/ml")
WORK_DIR = Path("/tmp/rollyard")
"""SageMaker keeps /tmp on the job's volume. It uploads all of /opt/ml/model when the job ends."""

DEFAULT_GPUS = 8
"""Without SM_NUM_GPUS and nvidia-smi: the default instance type has 8."""


class JobEnvironment(Record):
    job: str
    hosts: tuple[str, ...] = Field(min_length=1)
    """All hosts; the first is the head."""
    current_host: str
    num_gpus: int = Field(ge=0)
    root: Path
    model_dir: Path
    work: Path
    """Folder for the model, the data and everything that the program writes."""
    hyperparameters: dict[str, str]

    @property
    def head(self) -> str:
        return self.hosts[0]

    @property
    def is_head(self) -> bool:
        return self.current_host == self.head

    @property
    def variables(self) -> dict[str, str]:
        """The variables of SageMaker's own images, which scripts written for them read."""
        return {
            "SM_HOSTS": json.dumps(self.hosts),
            "SM_CURRENT_HOST": self.current_host,
            "SM_NUM_GPUS": str(self.num_gpus),
            "SM_MODEL_DIR": str(self.model_dir),
            "SM_TRAINING_ENV": json.dumps({"job_name": self.job}),
        }

    @property
    def code(self) -> Path:
        """Folder of the project's files; the program runs in it."""
        return self.root / "code"


def root_of(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("ROLLYARD_SAGEMAKER_ROOT", SAGEMAKER_ROOT))


def write_failure(root: Path, reason: str) -> None:
    """Print the reason and write it where SageMaker expects it. It shows the start of the file as FailureReason."""
    print(f"failed: {reason}", flush=True)
    file = root / "output" / "failure"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(reason)
    except OSError as error:
        print(f"SageMaker does not get this reason: {error}. The image's user must be able to write there", flush=True)


def read_environment(environ: Mapping[str, str]) -> JobEnvironment:
    """Read the variables of SageMaker's images, or else the files that SageMaker puts into every container."""
    root = root_of(environ)
    work = environ.get("ROLLYARD_WORK_DIR") or (root / "work" if "ROLLYARD_SAGEMAKER_ROOT" in environ else WORK_DIR)
    resources = _read(root / "input/config/resourceconfig.json")
    hosts = _json(environ, "SM_HOSTS") or resources.get("hosts") or ["algo-1"]
    if not isinstance(hosts, list) or not all(isinstance(host, str) and host for host in hosts):
        raise OperatorError(f'the hosts of the job are {hosts!r}, expected a list of names such as ["algo-1"]')
    training = _json(environ, "SM_TRAINING_ENV") or {}
    if not isinstance(training, dict):
        raise OperatorError(f"the variable SM_TRAINING_ENV is {training!r}, expected a JSON object")
    raw = {
        "job": training.get("job_name") or environ.get("TRAINING_JOB_NAME") or "local",
        "hosts": hosts,
        "current_host": environ.get("SM_CURRENT_HOST") or resources.get("current_host") or hosts[0],
        "num_gpus": environ.get("SM_NUM_GPUS") or len(visible_gpus(environ) or ()) or DEFAULT_GPUS,
        "root": root,
        "model_dir": environ.get("SM_MODEL_DIR", root / "model"),
        "work": work,
        "hyperparameters": _read(root / "input/config/hyperparameters.json"),
    }
    environment = parse_settings(JobEnvironment, raw, "the environment of the job")
    if environment.current_host not in environment.hosts:
        raise OperatorError(f"this host is {environment.current_host!r}, which is not one of the hosts {list(hosts)}")
    return environment


def _json(environ: Mapping[str, str], name: str) -> Any:
    try:
        return json.loads(environ.get(name) or "null")
    except ValueError as error:
        raise OperatorError(f"the variable {name} is {environ[name]!r}, expected JSON") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise OperatorError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise OperatorError(f"{path} contains a {type(data).__name__}, expected a JSON object")
    return data
