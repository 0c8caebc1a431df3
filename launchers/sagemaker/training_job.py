"""Creates, describes and stops SageMaker training jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import ConfigDict

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.io.aws import AwsError, aws_errors
from rollyard.records.types import Record

ENDED = ("Completed", "Failed", "Stopped")
_IN_USE = ("ResourceInUse", "ResourceInUseException")


class NameTaken(RunError):
    """The account already has a job with this name."""


class JobRequest(Record):
    """What CreateTrainingJob gets."""

    name: str
    role_arn: str
    image: str
    container_entrypoint: tuple[str, ...]
    hyperparameters: dict[str, str]
    environment: dict[str, str]
    instance_type: str
    instance_count: int
    volume_size_gb: int
    max_runtime_s: int
    output: str
    """S3 URL of the folder for the job's output."""
    subnets: tuple[str, ...] = ()
    security_group_ids: tuple[str, ...] = ()

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of boto3's create_training_job."""
        algorithm: dict[str, Any] = {"TrainingImage": self.image, "TrainingInputMode": "File"}
        if self.container_entrypoint:
            algorithm["ContainerEntrypoint"] = list(self.container_entrypoint)
        arguments = {
            "TrainingJobName": self.name,
            "RoleArn": self.role_arn,
            "AlgorithmSpecification": algorithm,
            "HyperParameters": self.hyperparameters,
            "Environment": self.environment,
            "OutputDataConfig": {"S3OutputPath": self.output},
            "ResourceConfig": {
                "InstanceType": self.instance_type,
                "InstanceCount": self.instance_count,
                "VolumeSizeInGB": self.volume_size_gb,
            },
            "StoppingCondition": {"MaxRuntimeInSeconds": self.max_runtime_s},
        }
        if self.subnets:
            arguments["VpcConfig"] = {"Subnets": list(self.subnets), "SecurityGroupIds": list(self.security_group_ids)}
        return arguments


class JobDescription(Record):
    """The parts of DescribeTrainingJob that `ng_submit status` shows."""

    model_config = ConfigDict(frozen=True)

    name: str
    status: str
    """InProgress, Stopping, Completed, Failed or Stopped."""
    secondary_status: str
    failure_reason: str
    instances: str
    started: datetime | None
    ended: datetime | None
    hyperparameters: dict[str, str]


class TrainingJobs:
    """The training jobs of an account and region."""

    def __init__(self, sagemaker: Any) -> None:
        self._client = sagemaker

    def exists(self, name: str) -> bool:
        return self._describe(name) is not None

    def create(self, request: JobRequest) -> str:
        """Create the job and return its ARN. Raises NameTaken if another job has its name, else AwsError."""
        try:
            with aws_errors(f"job {request.name} cannot be created"):
                return str(self._client.create_training_job(**request.arguments())["TrainingJobArn"])
        except AwsError as error:
            if error.code in _IN_USE:
                raise NameTaken(
                    f"the account already has a job named {request.name}; pass another --job-name"
                ) from error
            raise

    def describe(self, name: str) -> JobDescription:
        """Raises OperatorError if there is no such job."""
        found = self._describe(name)
        if found is None:
            raise OperatorError(f"there is no training job {name} in this account and region")
        resources = found.get("ResourceConfig", {})
        return JobDescription(
            name=name,
            status=str(found["TrainingJobStatus"]),
            secondary_status=str(found.get("SecondaryStatus", "")),
            failure_reason=str(found.get("FailureReason", "")),
            instances=f"{resources.get('InstanceCount', 1)} x {resources.get('InstanceType', '?')}",
            started=found.get("TrainingStartTime") or found.get("CreationTime"),
            ended=found.get("TrainingEndTime"),
            hyperparameters=found.get("HyperParameters", {}),
        )

    def stop(self, name: str) -> JobDescription:
        """Ask SageMaker to stop a job; return its earlier state. A job that has ended is left as it is."""
        before = self.describe(name)
        if before.status not in (*ENDED, "Stopping"):
            with aws_errors(f"job {name} cannot be stopped"):
                self._client.stop_training_job(TrainingJobName=name)
        return before

    def _describe(self, name: str) -> dict[str, Any] | None:
        try:
            with aws_errors(f"job {name} cannot be described"):
                found: dict[str, Any] = self._client.describe_training_job(TrainingJobName=name)
        except AwsError as error:
            # SageMaker answers ValidationException "Requested resource not found."
            if error.code == "ResourceNotFound" or (error.code == "ValidationException" and "not f" in str(error)):
                return None
            raise
        return found
