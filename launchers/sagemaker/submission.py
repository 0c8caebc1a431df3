"""Submission: the steps from a checked request to a running job, in an order that leaves nothing behind on failure."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rollyard.launchers.sagemaker.docker import Docker
from rollyard.launchers.sagemaker.image import EcrImage, build_command, registry_of
from rollyard.launchers.sagemaker.job_log import JobLog
from rollyard.launchers.sagemaker.job_parameters import JobParameters
from rollyard.launchers.sagemaker.settings import FILE, SageMakerSettings
from rollyard.launchers.sagemaker.source_bundle import SourceBundle
from rollyard.launchers.sagemaker.target import FEATURE, Target
from rollyard.launchers.sagemaker.training_job import JobRequest, NameTaken, TrainingJobs
from rollyard.records.errors import OperatorError, RollyardError, RunError
from rollyard.records.io.aws import AwsError, aws_errors

BUNDLE = "sourcedir.tar.gz"


@dataclass(frozen=True)
class Plan:
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
        """Folder of the bucket for SageMaker's own output."""
        return "eval_output" if self.is_evaluation else "output"


class Submission:
    """Submits one job."""

    def __init__(
        self, settings: SageMakerSettings, target: Target, log: JobLog, print_line: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._target = target
        self._log = log
        self._print = print_line

    def build(self, tag: str, bundle: SourceBundle) -> None:
        """Build the image. Raises OperatorError without docker, RunError if the build fails."""
        docker = self._docker("--build")
        base = self._settings.base_image
        if base and (registry := registry_of(base)):
            host, region = registry
            ecr = self._settings.access.model_copy(update={"region": region}).client("ecr", FEATURE)
            self._image(tag).sign_in(docker, host, ecr)
        local = f"{self._target.repository}:{tag}"
        docker.run(build_command(bundle.project, self._settings.dockerfile, local, base))

    def push(self, tag: str) -> None:
        """Create the repository if needed, and push the image."""
        docker, image = self._docker("--push"), self._image(tag)
        if image.create_repository():
            self._print(f"created the ECR repository {self._target.repository}")
        image.sign_in(docker, self._target.registry)
        docker.run(["docker", "tag", f"{self._target.repository}:{tag}", self._target.image(tag)])
        docker.run(["docker", "push", self._target.image(tag)])

    def submit(self, plan: Plan) -> str:
        """Create the job and return its name. Raises OperatorError or RunError, and then leaves nothing behind."""
        s3_client = self._settings.access.client("s3", FEATURE)
        jobs = TrainingJobs(self._settings.access.client("sagemaker", FEATURE))
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
                self._print(f"uploaded {len(plan.bundle.files)} files ({size / 1e6:.1f} MB compressed)")
                return name
        raise taken or RunError("no job name is available")

    def request(self, plan: Plan, name: str) -> JobRequest:
        """Return what CreateTrainingJob gets."""
        target, settings = self._target, self._settings
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
        return f"{self._target.prefix}/source/{name}/{BUNDLE}"

    def _create(self, plan: Plan, name: str, s3_client: Any, jobs: TrainingJobs) -> None:
        """Log and create the job. The line comes first: without it, the job's experiment would be unknown."""
        request = self.request(plan, name)
        try:
            self._log.add(name, plan.parameters.config or "", plan.description, plan.submitted)
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
                self._log.remove(name)
                self._delete_bundle(s3_client, name)
            else:
                self._print(f"{name} may have been created and stays in the job log; see: ng_submit status {name}")
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
            s3_client.delete_object(Bucket=self._target.bucket, Key=self.bundle_key(name))

    def _upload(self, s3_client: Any, name: str, archive: Any, jobs: TrainingJobs) -> None:
        """Upload the bundle under the job's name, which also reserves the name: S3 accepts only the first one."""
        if jobs.exists(name):
            raise NameTaken(f"the account already has a job named {name}; pass another --job-name")
        key = self.bundle_key(name)
        archive.seek(0)
        try:
            with aws_errors(f"s3://{self._target.bucket}/{key} cannot be uploaded"):
                s3_client.put_object(Bucket=self._target.bucket, Key=key, Body=archive, IfNoneMatch="*")
        except AwsError as error:
            if error.code in ("PreconditionFailed", "412", "ConditionalRequestConflict"):
                raise NameTaken(
                    f"another submission uses the name {name} (s3://{self._target.bucket}/{key} exists); pass another "
                    "--job-name"
                ) from error
            raise

    def _check_bucket(self, s3_client: Any) -> None:
        bucket, region = self._target.bucket, self._target.region
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
        return EcrImage(self._settings.access.client("ecr", FEATURE), self._target.repository, tag)

    def _docker(self, option: str) -> Docker:
        docker = Docker(self._print)
        docker.require(option)
        return docker
