"""SageMakerSettings: the account, bucket, role and defaults of a project's jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator, Field

from rollyard.records.errors import OperatorError
from rollyard.records.io.aws import AwsAccess
from rollyard.records.io.yaml_aliases import check_aliases
from rollyard.records.types import Record
from rollyard.services.server.settings import parse_settings

FILE = "sagemaker.yaml"
"""The settings file of a project."""
VARIABLE_PREFIX = "ROLLYARD_SAGEMAKER_"
"""ROLLYARD_SAGEMAKER_ROLE sets `role`, and so on for every setting with a single value."""


def _account(value: Any) -> Any:
    """Accept an account id without quotes in YAML, unless a leading zero made it another number."""
    text = str(value) if isinstance(value, int) else value
    if isinstance(text, str) and not re.fullmatch(r"\d{12}", text):
        raise ValueError(f"expected 12 digits, in quotes, found {value!r}")
    return text


class SageMakerSettings(Record):
    """The keys of `sagemaker.yaml`."""

    region: str | None = None
    """AWS region of jobs, images and the bucket; default: boto3's, such as AWS_DEFAULT_REGION."""
    profile: str | None = None
    """Profile of the AWS configuration; default: boto3's."""
    endpoint_url: str | None = None
    """URL that replaces the endpoints of all AWS services, here and inside jobs."""
    account: Annotated[str | None, BeforeValidator(_account)] = None
    """Account id; default: that of the credentials."""
    bucket: str | None = None
    """Bucket of source bundles, checkpoints and outputs; default: sagemaker-<region>-<account>."""
    prefix: str = Field(default="rollyard", pattern=r"^[\w.-]+(/[\w.-]+)*$")
    """First part of every key in the bucket."""
    role: str | None = None
    """Execution role of jobs: its name or ARN."""
    repository: str = "rollyard"
    """ECR repository of the image, which is also the image's local name."""
    dockerfile: str = "Dockerfile"
    base_image: str | None = None
    """Passed to the build as the argument BASE. If it is in an ECR registry, the build signs in there first."""
    subnets: tuple[str, ...] = ()
    """Subnets of jobs in a VPC; needs security_group_ids, too."""
    security_group_ids: tuple[str, ...] = ()
    volume_size_gb: int = Field(default=100, ge=1)
    max_runtime_s: int = Field(default=5 * 24 * 3600, ge=1, le=28 * 24 * 3600)
    """Time limit of a training job, in seconds."""
    eval_max_runtime_s: int = Field(default=24 * 3600, ge=1, le=28 * 24 * 3600)
    """Time limit of an evaluation job (`ng_submit eval`), in seconds."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Additional environment variables of jobs."""
    container_entrypoint: tuple[str, ...] = ("python", "-m", "rollyard.launchers.sagemaker.container")
    """The program that the image runs. Empty: the image's own, such as that of sagemaker-training."""
    train_command: tuple[str, ...] = ("ng_train", "{config}")
    """The training program and its arguments; `{config}` is replaced by the path of the config inside the job."""
    eval_command: tuple[str, ...] = ("ng_eval", "{config}")
    """The program of `ng_submit eval`."""
    watch_command: tuple[str, ...] = ("ng_eval", "{config}", "--watch", "{checkpoints}", "poll_interval_s=30")
    """The program that evaluates checkpoints next to training (`--eval-config`)."""
    final_eval_command: tuple[str, ...] = ("ng_eval", "{config}", "--watch", "{checkpoints}", "once=true")
    """Run after training, for the checkpoints that watch_command has not evaluated. Empty: not run."""
    job_log: Path = Path("docs/job_log.md")
    """The list of submitted jobs, relative to the project."""
    max_source_mb: int = Field(default=500, ge=1, le=5000)
    """Maximum size of the files of the source bundle together, in MB."""

    @property
    def access(self) -> AwsAccess:
        return AwsAccess(region=self.region, profile=self.profile, endpoint_url=self.endpoint_url)


def read_settings(
    file: Path | None, project: Path, environ: Mapping[str, str], options: Mapping[str, Any]
) -> SageMakerSettings:
    """Combine the settings file, environment variables and options; the later ones take precedence.

    `file`: default is sagemaker.yaml in the project, if it exists. Raises OperatorError for invalid settings.
    """
    path = file or project / FILE
    raw = _read(path) if file is not None or path.is_file() else {}
    names = {f"{VARIABLE_PREFIX}{name.upper()}": name for name in SageMakerSettings.model_fields}
    for variable, value in environ.items():
        # ROOT is no setting: in the container of a local run, it names the folder that stands for /opt/ml.
        if variable.startswith(VARIABLE_PREFIX) and variable != f"{VARIABLE_PREFIX}ROOT":
            if variable not in names:
                raise OperatorError(f"the environment variable {variable} is not a setting; expected {_listed(names)}")
            raw[names[variable]] = value.split(",") if names[variable] in _LISTS else value
    if raw.get("region") is None:
        raw["region"] = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    raw |= {name: value for name, value in options.items() if value is not None}
    settings = parse_settings(SageMakerSettings, raw, str(path))
    if bool(settings.subnets) != bool(settings.security_group_ids):
        raise OperatorError(f"{path}: a VPC needs both subnets and security_group_ids, but only one of them is set")
    return settings


_LISTS = ("subnets", "security_group_ids")


def _listed(names: Mapping[str, str]) -> str:
    return ", ".join(sorted(names))


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
        check_aliases(text)
        raw = yaml.safe_load(text)
    except OSError as error:
        raise OperatorError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise OperatorError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise OperatorError(f"{path} contains a {type(raw).__name__}, expected a mapping of settings")
    return raw
