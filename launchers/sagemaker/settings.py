"""The settings of a project's jobs (sagemaker.yaml), and the account, region, bucket and role that follow from them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator, Field

from rollyard.records.errors import OperatorError
from rollyard.records.s3 import AwsAccess, aws_errors
from rollyard.records.types import Record
from rollyard.records.yaml_aliases import check_aliases
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
                raise OperatorError(
                    f"the environment variable {variable} is not a setting; expected {', '.join(sorted(names))}"
                )
            raw[names[variable]] = value.split(",") if names[variable] in _LISTS else value
    if raw.get("region") is None:
        raw["region"] = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    raw |= {name: value for name, value in options.items() if value is not None}
    settings = parse_settings(SageMakerSettings, raw, str(path))
    if bool(settings.subnets) != bool(settings.security_group_ids):
        raise OperatorError(f"{path}: a VPC needs both subnets and security_group_ids, but only one of them is set")
    return settings


_LISTS = ("subnets", "security_group_ids")


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


FEATURE = "ng_submit"
ANY_ACCOUNT, ANY_REGION = "ACCOUNT", "REGION"
"""Shown instead of values that are not known without calling AWS."""


class SageMakerTarget(Record):
    account: str
    region: str
    bucket: str
    prefix: str
    repository: str
    role_arn: str | None
    endpoint_url: str | None

    @property
    def partition(self) -> str:
        return {"cn": "aws-cn", "us-gov": "aws-us-gov"}.get(self.region.rpartition("-")[0].rpartition("-")[0], "aws")

    @property
    def registry(self) -> str:
        """Host of the account's ECR registry."""
        return f"{self.account}.dkr.ecr.{self.region}.amazonaws.com" + (".cn" if self.partition == "aws-cn" else "")

    @property
    def s3(self) -> str:
        """URL below which the project's objects are: s3://bucket/prefix."""
        return f"s3://{self.bucket}/{self.prefix}"

    def image(self, tag: str) -> str:
        return f"{self.registry}/{self.repository}:{tag}"

    def console_url(self, job: str) -> str:
        return f"https://{self.region}.console.aws.amazon.com/sagemaker/home?region={self.region}#/jobs/{job}"


def find_target(settings: SageMakerSettings, *, offline: bool = False) -> SageMakerTarget:
    """Return the target of the settings. Asks STS for the account unless it is set.

    `offline`: uses placeholders instead of asking. Raises OperatorError if there is no region, AwsError if STS fails.
    """
    account, region = settings.account, settings.region
    if offline:
        account, region = account or ANY_ACCOUNT, region or ANY_REGION
    else:
        sts = settings.access.client("sts", FEATURE)
        region = region or sts.meta.region_name
        if region is None or region == "aws-global":
            raise OperatorError(f"no AWS region is set; pass --region, or set AWS_DEFAULT_REGION or region in {FILE}")
        if account is None:
            with aws_errors("the AWS account cannot be determined"):
                account = str(sts.get_caller_identity()["Account"])
    target = SageMakerTarget(
        account=account,
        region=region,
        bucket=settings.bucket or f"sagemaker-{region}-{account}",
        prefix=settings.prefix,
        repository=settings.repository,
        role_arn=settings.role if settings.role and settings.role.startswith("arn:") else None,
        endpoint_url=settings.endpoint_url,
    )
    if settings.role and target.role_arn is None:
        arn = f"arn:{target.partition}:iam::{account}:role/{settings.role}"
        return target.model_copy(update={"role_arn": arn})
    return target


_JOB_ACTIONS = ("CreateTrainingJob", "DescribeTrainingJob", "StopTrainingJob", "ListTrainingJobs")
_PUSH_ACTIONS = (
    *("CreateRepository", "DescribeRepositories", "DescribeImages", "BatchCheckLayerAvailability"),
    *("GetDownloadUrlForLayer", "BatchGetImage", "InitiateLayerUpload", "UploadLayerPart"),
    *("CompleteLayerUpload", "PutImage"),
)


def policy(target: SageMakerTarget) -> dict[str, Any]:
    """Return the policy document for the user that runs `ng_submit`."""
    arn, place = f"arn:{target.partition}", f"{target.region}:{target.account}"
    bucket = f"{arn}:s3:::{target.bucket}"
    logs = f"{arn}:logs:{place}:log-group:/aws/sagemaker/TrainingJobs"

    def allow(service: str, actions: Sequence[str], resource: str | list[str], **more: Any) -> dict[str, Any]:
        return {"Effect": "Allow", "Action": [f"{service}:{one}" for one in actions], "Resource": resource, **more}

    return {
        "Version": "2012-10-17",
        "Statement": [
            allow("ecr", ["GetAuthorizationToken"], "*"),
            allow("ecr", _PUSH_ACTIONS, f"{arn}:ecr:{place}:repository/{target.repository}"),
            allow("sagemaker", _JOB_ACTIONS, "*"),
            allow(
                "iam",
                ["PassRole"],
                target.role_arn or f"{arn}:iam::{target.account}:role/*",
                Condition={"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}},
            ),
            allow("s3", ["ListBucket", "GetBucketLocation"], bucket),
            allow(
                "s3", ["GetObject", "PutObject", "DeleteObject", "AbortMultipartUpload"], f"{bucket}/{target.prefix}/*"
            ),
            allow("logs", ["DescribeLogStreams", "GetLogEvents"], [logs, f"{logs}:*"]),
        ],
    }
