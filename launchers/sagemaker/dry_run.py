"""Describes a submission without touching anything."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from rollyard.launchers.sagemaker.docker import shown
from rollyard.launchers.sagemaker.image import build_command, registry_of
from rollyard.launchers.sagemaker.job_log import JobLog
from rollyard.launchers.sagemaker.settings import SageMakerSettings
from rollyard.launchers.sagemaker.submission import Plan, Submission
from rollyard.launchers.sagemaker.target import ANY_ACCOUNT, Target
from rollyard.records.io.terminal import plain_line
from rollyard.services.server.settings import redacted

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_HIDDEN = "(hidden)"


def describe(
    settings: SageMakerSettings,
    target: Target,
    plan: Plan,
    submission: Submission,
    log: JobLog,
    *,
    build: bool,
    push: bool,
) -> Iterator[str]:
    """Yield every command, call and file in order. Values that only AWS knows are placeholders in capitals."""
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
    yield plain_line(f"append to {log.path}: {name} | {plan.parameters.config or ''} | {plan.description}")
    request = submission.request(plan, name)
    shown_values = {
        key: _HIDDEN if _SECRET.search(key) else redacted(value, key) for key, value in request.environment.items()
    }
    yield _call("sagemaker", "CreateTrainingJob", request.model_copy(update={"environment": shown_values}).arguments())


def _sign_in(registry: str) -> Iterator[str]:
    yield _call("ecr", "GetAuthorizationToken", {})
    yield shown(["docker", "login", "--username", "AWS", "--password-stdin", registry])


def _call(service: str, operation: str, arguments: object) -> str:
    return f"{service}:{operation} {json.dumps(arguments, indent=2 if operation == 'CreateTrainingJob' else None)}"
