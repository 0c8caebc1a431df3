"""Submission: the steps from a checked request to a running job, in an order that leaves nothing behind on failure.

`describe` shows them without touching anything. Job names do not describe the experiment, because names appear in logs
that others can read; the job log (`docs/job_log.md`) maps them to experiments.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from rollyard.launchers.sagemaker.image import Docker, EcrImage, build_command, registry_of, shown
from rollyard.launchers.sagemaker.job_parameters import JobParameters
from rollyard.launchers.sagemaker.settings import ANY_ACCOUNT, FEATURE, FILE, SageMakerSettings, SageMakerTarget
from rollyard.launchers.sagemaker.source_bundle import SourceBundle
from rollyard.launchers.sagemaker.training_job import JobRequest, NameTaken, TrainingJobs
from rollyard.records.errors import OperatorError, RollyardError, RunError
from rollyard.records.jsonl import replace
from rollyard.records.locked_files import open_locked
from rollyard.records.s3 import AwsError, aws_errors
from rollyard.records.terminal import plain, plain_line
from rollyard.services.server.settings import redacted

BUNDLE = "sourcedir.tar.gz"


@dataclass(frozen=True)
class SubmissionPlan:
    """What is to be submitted. Everything in it has been checked as far as that is possible without AWS."""

    names: Iterable[str]
    """The job's name, or names to try in order until one is free."""
    parameters: JobParameters
    bundle: SourceBundle
    image_tag: str
    instance_type: str
    instance_count: int
    is_evaluation: bool
    description: str
    submitted: datetime

    @property
    def folder(self) -> str:
        return "eval_output" if self.is_evaluation else "output"


@dataclass(frozen=True)
class SageMakerSubmission:
    settings: SageMakerSettings
    target: SageMakerTarget
    log: JobLog
    print_line: Callable[[str], None]

    def build(self, tag: str, bundle: SourceBundle) -> None:
        docker = self._docker("--build")
        base = self.settings.base_image
        if base and (registry := registry_of(base)):
            host, region = registry
            ecr = self.settings.access.model_copy(update={"region": region}).client("ecr", FEATURE)
            EcrImage(ecr, self.target.repository, tag).sign_in(docker, host)
        local = f"{self.target.repository}:{tag}"
        docker.run(build_command(bundle.project, self.settings.dockerfile, local, base))

    def push(self, tag: str) -> None:
        """Create the repository if needed, and push the image."""
        docker, image = self._docker("--push"), self._image(tag)
        if image.create_repository():
            self.print_line(f"created the ECR repository {self.target.repository}")
        image.sign_in(docker, self.target.registry)
        docker.run(["docker", "tag", f"{self.target.repository}:{tag}", self.target.image(tag)])
        docker.run(["docker", "push", self.target.image(tag)])

    def submit(self, plan: SubmissionPlan) -> str:
        """Create the job and return its name. Raises OperatorError or RunError, and then leaves nothing behind."""
        s3_client = self.settings.access.client("s3", FEATURE)
        jobs = TrainingJobs(self.settings.access.client("sagemaker", FEATURE))
        self._check_bucket(s3_client)
        self._image(plan.image_tag).check()
        with tempfile.TemporaryFile() as archive:  # unnamed: it disappears even if this process is killed
            plan.bundle.write(archive)
            size = archive.tell()
            taken: RunError | None = None
            for name in plan.names:
                try:
                    self._upload(s3_client, name, archive, jobs)
                    self._create(plan, name, s3_client, jobs)
                except NameTaken as error:
                    taken = error
                    continue
                self.print_line(f"uploaded {len(plan.bundle.files)} files ({size / 1e6:.1f} MB compressed)")
                return name
        raise taken or RunError("no job name is available")

    def request(self, plan: SubmissionPlan, name: str) -> JobRequest:
        target, settings = self.target, self.settings
        environment = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "AWS_DEFAULT_REGION": target.region}
        if plan.is_evaluation or plan.parameters.eval_config:
            environment["HF_ALLOW_CODE_EVAL"] = "1"
        if target.endpoint_url:
            environment["AWS_ENDPOINT_URL"] = target.endpoint_url
        parameters = plan.parameters.model_copy(
            update={"s3": target.s3, "sagemaker_submit_directory": f"s3://{target.bucket}/{self.bundle_key(name)}"}
        )
        return JobRequest(
            name=name,
            role_arn=target.role_arn or "ROLE",
            image=target.image(plan.image_tag),
            container_entrypoint=settings.container_entrypoint,
            hyperparameters=parameters.hyperparameters(),
            environment=environment | settings.environment,
            instance_type=plan.instance_type,
            instance_count=plan.instance_count,
            volume_size_gb=settings.volume_size_gb,
            max_runtime_s=settings.eval_max_runtime_s if plan.is_evaluation else settings.max_runtime_s,
            output=f"{target.s3}/{plan.folder}/",
            subnets=settings.subnets,
            security_group_ids=settings.security_group_ids,
        )

    def bundle_key(self, name: str) -> str:
        return f"{self.target.prefix}/source/{name}/{BUNDLE}"

    def _create(self, plan: SubmissionPlan, name: str, s3_client: Any, jobs: TrainingJobs) -> None:
        """Log and create the job. The line comes first: without it, the job's experiment would be unknown."""
        request = self.request(plan, name)
        try:
            self.log.add(name, plan.parameters.config or "", plan.description, plan.submitted)
        except BaseException:
            self._delete_bundle(s3_client, name)
            raise
        try:
            jobs.create(request)
        except BaseException as error:
            # The response may be lost although the job exists; a repeated request then finds its own name taken.
            created = self._was_created(jobs, request, error)
            if created and isinstance(error, RollyardError):
                return
            if created is False:
                self.log.remove(name)
                self._delete_bundle(s3_client, name)
            else:
                self.print_line(f"{name} may have been created and stays in the job log; see: ng_submit status {name}")
            raise

    def _was_created(self, jobs: TrainingJobs, request: JobRequest, error: BaseException) -> bool | None:
        """Return whether the job exists with our source bundle; None if that cannot be found out."""
        key = "sagemaker_submit_directory"
        try:
            found = jobs.describe(request.name)
        except OperatorError:
            return False
        except RunError:
            return False if isinstance(error, AwsError) and 400 <= error.status < 500 else None
        return found.hyperparameters.get(key) == request.hyperparameters[key]

    def _delete_bundle(self, s3_client: Any, name: str) -> None:
        with suppress(RollyardError), aws_errors("the source bundle cannot be deleted"):
            s3_client.delete_object(Bucket=self.target.bucket, Key=self.bundle_key(name))

    def _upload(self, s3_client: Any, name: str, archive: Any, jobs: TrainingJobs) -> None:
        """Upload the bundle under the job's name, which also reserves the name: S3 accepts only the first one."""
        if jobs.exists(name):
            raise NameTaken(f"the account already has a job named {name}; pass another --job-name")
        key = self.bundle_key(name)
        archive.seek(0)
        try:
            with aws_errors(f"s3://{self.target.bucket}/{key} cannot be uploaded"):
                s3_client.put_object(Bucket=self.target.bucket, Key=key, Body=archive, IfNoneMatch="*")
        except AwsError as error:
            if error.code in ("PreconditionFailed", "412", "ConditionalRequestConflict"):
                raise NameTaken(
                    f"another submission uses the name {name} (s3://{self.target.bucket}/{key} exists); pass another "
                    "--job-name"
                ) from error
            raise

    def _check_bucket(self, s3_client: Any) -> None:
        bucket, region = self.target.bucket, self.target.region
        try:
            with aws_errors(f"bucket {bucket} cannot be used"):
                headers = s3_client.head_bucket(Bucket=bucket)["ResponseMetadata"]["HTTPHeaders"]
        except AwsError as error:
            if error.status != 404:
                raise
            raise RunError(
                f"bucket {bucket} does not exist. Create it in {region}, or set `bucket` in {FILE}"
            ) from error
        found = headers.get("x-amz-bucket-region")
        if found and found != region:
            raise RunError(
                f"bucket {bucket} is in {found}, but jobs run in {region}. Pass --region {found}, or set another bucket"
            )

    def _image(self, tag: str) -> EcrImage:
        return EcrImage(self.settings.access.client("ecr", FEATURE), self.target.repository, tag)

    def _docker(self, option: str) -> Docker:
        docker = Docker(self.print_line)
        docker.require(option)
        return docker


_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_HIDDEN = "(hidden)"


def describe(submission: SageMakerSubmission, plan: SubmissionPlan, *, build: bool, push: bool) -> Iterator[str]:
    """Yield every command, call and file in order. Values that only AWS knows are placeholders in capitals."""
    settings, target = submission.settings, submission.target
    name, tag = next(iter(plan.names)), plan.image_tag
    local = f"{target.repository}:{tag}"
    if target.account == ANY_ACCOUNT:
        yield _call("sts", "GetCallerIdentity", {})
    if build:
        if settings.base_image and (registry := registry_of(settings.base_image)):
            yield from _sign_in(registry[0])
        yield shown(build_command(plan.bundle.project, settings.dockerfile, local, settings.base_image))
    if push:
        yield _call("ecr", "CreateRepository", {"repositoryName": target.repository}) + "  (unless it exists)"
        yield from _sign_in(target.registry)
        yield shown(["docker", "tag", local, target.image(tag)])
        yield shown(["docker", "push", target.image(tag)])
    yield _call("s3", "HeadBucket", {"Bucket": target.bucket})
    yield _call("ecr", "BatchGetImage", {"repositoryName": target.repository, "imageIds": [{"imageTag": tag}]})
    yield _call("sagemaker", "DescribeTrainingJob", {"TrainingJobName": name})
    key = submission.bundle_key(name)
    yield _call("s3", "PutObject", {"Bucket": target.bucket, "Key": key, "IfNoneMatch": "*"})
    yield f"  with {len(plan.bundle.files)} files, {plan.bundle.size / 1e6:.1f} MB:"
    for file in plan.bundle.files:
        yield f"  {plain_line(file)}"
    yield plain_line(f"append to {submission.log.path}: {name} | {plan.parameters.config or ''} | {plan.description}")
    request = submission.request(plan, name)
    values = request.environment.items()
    shown_values = {key: _HIDDEN if _SECRET.search(key) else redacted(value, key) for key, value in values}
    yield _call("sagemaker", "CreateTrainingJob", request.model_copy(update={"environment": shown_values}).arguments())


def _sign_in(registry: str) -> Iterator[str]:
    yield _call("ecr", "GetAuthorizationToken", {})
    yield shown(["docker", "login", "--username", "AWS", "--password-stdin", registry])


def _call(service: str, operation: str, arguments: object) -> str:
    return f"{service}:{operation} {json.dumps(arguments, indent=2 if operation == 'CreateTrainingJob' else None)}"


MAX_LENGTH = 63
_PATTERN = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
_STAMP = "%Y%m%d-%H%M%S"
_STAMP_LENGTH = 15
MAX_CANDIDATES = 120


def checked(name: str) -> str:
    if len(name) > MAX_LENGTH:
        raise OperatorError(f"job name {name!r} has {len(name)} characters; SageMaker accepts at most {MAX_LENGTH}")
    if not _PATTERN.fullmatch(name):
        raise OperatorError(
            f"job name {name!r}: expected letters, digits and hyphens, starting and ending with a letter or digit "
            f"({_PATTERN.pattern})"
        )
    return name


def training_names(now: datetime) -> Iterator[str]:
    """Yield `annotations-adhoc-<stamp>` for this second and the following ones, for when a name is taken."""
    for seconds in range(MAX_CANDIDATES):
        yield f"annotations-adhoc-{_stamp(now, seconds)}"


def evaluation_names(stem: str, now: datetime) -> Iterator[str]:
    """Yield `eval-<stem>-<stamp>`. The stem is shortened, and its other characters become hyphens."""
    longest = MAX_LENGTH - len("eval--") - _STAMP_LENGTH
    clean = re.sub(r"[^a-zA-Z0-9]+", "-", stem).strip("-")[:longest].strip("-") or "config"
    for seconds in range(MAX_CANDIDATES):
        yield f"eval-{clean}-{_stamp(now, seconds)}"


def _stamp(now: datetime, seconds: int) -> str:
    return (now + timedelta(seconds=seconds)).strftime(_STAMP)


HEADER = "| Job Name | Config | Description | Submitted |\n|----------|--------|-------------|-----------|\n"
_TITLE = "# Submitted jobs\n\n"
LOCK_TIMEOUT_S = 20.0
_ROW = re.compile(r"^\| *([a-zA-Z0-9][a-zA-Z0-9-]*) *\|", re.MULTILINE)


class JobLog:
    """A Markdown file with one line for each job. Several processes may write to it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, name: str, config: str, description: str, submitted: datetime) -> None:
        """Append a line; creates the file and its header if needed. Raises RunError or OSError if it cannot."""
        line = " | ".join(["| " + _cell(name), _cell(config), _cell(description), f"{submitted:%Y-%m-%d %H:%M} |\n"])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._locked() as fd:
            text = self.path.read_text()
            # A writer that was killed, or an editor, may have left a line without its end.
            start = "" if not text or text.endswith("\n") else "\n"
            header = "" if HEADER.partition("\n")[0] in text else ("\n" if text else _TITLE) + HEADER
            data = f"{start}{header}{line}".encode()
            while data:
                data = data[os.write(fd, data) :]
            os.fsync(fd)

    def remove(self, name: str) -> None:
        """Delete the line of a job that could not be submitted."""
        with self._locked():
            lines = self.path.read_text().splitlines(keepends=True)
            kept = [line for line in lines if not ((found := _ROW.match(line)) and found[1] == name)]
            replace(self.path, "".join(kept).encode())

    def names(self) -> list[str]:
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return []
        return [name for name in _ROW.findall(text) if name != "Job"]

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Lock the file and wait for other writers, each of which needs milliseconds."""
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fd = open_locked(self.path)
                break
            except RunError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        try:
            yield fd
        finally:
            os.close(fd)


def _cell(text: str) -> str:
    """Return text that stays in one cell of a Markdown table."""
    return plain(" ".join(text.split())).replace("\\", "\\\\").replace("|", "\\|")
