"""JobEnvironment: the hosts, folders and name of the job that this process is part of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from rollyard.records.errors import OperatorError
from rollyard.records.gpus import visible_gpus
from rollyard.records.types import Record
from rollyard.services.server.settings import parse_settings

SAGEMAKER_ROOT = Path("/opt/ml")
WORK_DIR = Path("/tmp/rollyard")
"""SageMaker keeps /tmp on the job's volume. It uploads all of /opt/ml/model when the job ends."""

DEFAULT_GPUS = 8
"""Without SM_NUM_GPUS and nvidia-smi: the default instance type has 8."""


class JobEnvironment(Record):
    """A job as one of its hosts sees it."""

    job: str
    hosts: tuple[str, ...] = Field(min_length=1)
    """All hosts; the first is the head."""
    current_host: str
    num_gpus: int = Field(ge=0)
    root: Path
    """SageMaker's folder /opt/ml."""
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
    """Read the variables of SageMaker's images, or else the files that SageMaker puts into every container.

    Raises OperatorError if they contradict each other or cannot be parsed.
    """
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
    text = environ.get(name)
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise OperatorError(f"the variable {name} is {text!r}, expected JSON") from error


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
