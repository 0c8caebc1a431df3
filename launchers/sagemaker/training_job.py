"""SageMaker's training jobs: creates, describes and stops them, and follows one with its log until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.s3 import AwsError, aws_errors
from rollyard.records.types import Record

ENDED = ("Completed", "Failed", "Stopped")
_IN_USE = ("ResourceInUse", "ResourceInUseException")


class NameTaken(RunError):
    """The account already has a job with this name."""


class JobRequest(Record):
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
    subnets: tuple[str, ...] = ()
    security_group_ids: tuple[str, ...] = ()

    def arguments(self) -> dict[str, Any]:
        algorithm: dict[str, Any] = {"TrainingImage": self.image, "TrainingInputMode": "File"}
        if self.container_entrypoint:
            algorithm["ContainerEntrypoint"] = list(self.container_entrypoint)
        instances = {"InstanceType": self.instance_type, "InstanceCount": self.instance_count}
        arguments = {
            "TrainingJobName": self.name,
            "RoleArn": self.role_arn,
            "AlgorithmSpecification": algorithm,
            "HyperParameters": self.hyperparameters,
            "Environment": self.environment,
            "OutputDataConfig": {"S3OutputPath": self.output},
            "ResourceConfig": {**instances, "VolumeSizeInGB": self.volume_size_gb},
            "StoppingCondition": {"MaxRuntimeInSeconds": self.max_runtime_s},
        }
        if self.subnets:
            arguments["VpcConfig"] = {"Subnets": list(self.subnets), "SecurityGroupIds": list(self.security_group_ids)}
        return arguments


class JobDescription(Record):
    """The parts of DescribeTrainingJob that `ng_submit status` shows."""

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


POLL_S = 5.0
MAX_POLL_S = 30.0
"""The pause doubles up to this while nothing new arrives."""
MAX_ERRORS = 20
"""Consecutive failed polls after which following ends; the job continues."""
START_MARGIN_S = 4 * 3600.0
"""A job may wait this long for its instances, in addition to its time limit."""


def wait(
    jobs: TrainingJobs, logs: JobLogs, name: str, max_runtime_s: float, print_line: Callable[[str], None], poll_s: float
) -> JobDescription:
    """Print a job's log and its changes of status until it has ended. Raises RunError if AWS no longer answers."""
    deadline = time.monotonic() + max_runtime_s + START_MARGIN_S
    shown, pause, errors = "", poll_s, 0
    while True:
        pause = min(pause * 2, max(MAX_POLL_S, poll_s))
        try:
            # The status first: lines that arrive before a job ends are then printed.
            job = jobs.describe(name)
            for line in logs.new_lines():
                print_line(line.rstrip("\n"))
                pause = poll_s
            errors = 0
        except AwsError as error:
            errors += 1
            if errors >= MAX_ERRORS or (error.status in (400, 403) and "throttled" not in str(error)):
                raise RunError(f"{error}. The job continues; follow it with: ng_submit status {name}") from error
        else:
            status = f"{job.status} {job.secondary_status}".strip()
            if status != shown:
                shown, pause = status, poll_s
                print_line(f"{name}: {status}")
            if job.status in ENDED:
                return job
        if time.monotonic() > deadline:
            raise RunError(f"{name} has not ended within its time limit; follow it with: ng_submit status {name}")
        time.sleep(pause)


LOG_GROUP = "/aws/sagemaker/TrainingJobs"
MAX_PAGES = 50
"""Maximum number of requests for one stream in one call, so that a fast writer cannot keep the caller busy."""


@dataclass(frozen=True)
class JobLogs:
    """The log streams of one job, one for each host; each line is returned once."""

    logs: Any
    job: str
    _tokens: dict[str, str] = field(default_factory=dict)

    def new_lines(self) -> Iterator[str]:
        """Yield the lines that arrived since the last call. With several hosts, each starts with its host's name."""
        streams = self._streams()
        for stream in streams:
            host = stream.removeprefix(f"{self.job}/").rpartition("-")[0]
            for message in self._events(stream):
                yield f"[{host}] {message}" if len(streams) > 1 else message

    def _streams(self) -> list[str]:
        try:
            with aws_errors(f"the log of {self.job} cannot be read"):
                pages = self.logs.get_paginator("describe_log_streams").paginate(
                    logGroupName=LOG_GROUP, logStreamNamePrefix=f"{self.job}/"
                )
                return sorted(stream["logStreamName"] for page in pages for stream in page["logStreams"])
        except AwsError as error:
            if error.code == "ResourceNotFoundException":  # no job of the account has written anything yet
                return []
            raise

    def _events(self, stream: str) -> Iterator[str]:
        for _ in range(MAX_PAGES):
            more = {"nextToken": self._tokens[stream]} if stream in self._tokens else {}
            with aws_errors(f"the log of {self.job} cannot be read"):
                page = self.logs.get_log_events(
                    logGroupName=LOG_GROUP, logStreamName=stream, startFromHead=True, **more
                )
            yield from (str(event["message"]) for event in page["events"])
            ended = self._tokens.get(stream) == page["nextForwardToken"]
            self._tokens[stream] = page["nextForwardToken"]
            if ended or not page["events"]:
                return
