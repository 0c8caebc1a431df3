"""The job's image in ECR: checks that its tag exists, and builds and pushes it."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollyard.launchers.sagemaker.docker import Docker
from rollyard.records.errors import RunError
from rollyard.records.io.aws import AwsError, aws_errors

_ECR_HOST = re.compile(r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")
_RECENT = 3


class EcrImage:
    """One tag of a repository in ECR."""

    def __init__(self, ecr: Any, repository: str, tag: str) -> None:
        self._ecr = ecr
        self.repository = repository
        self.tag = tag

    def check(self) -> None:
        """Raise RunError if the tag does not exist. The message names the newest tags."""
        try:
            with aws_errors(f"image {self.repository}:{self.tag} cannot be checked"):
                # Pulling needs the same permission, so that policies for building and submitting have it.
                found = self._ecr.batch_get_image(repositoryName=self.repository, imageIds=[{"imageTag": self.tag}])
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
                self._ecr.create_repository(repositoryName=self.repository)
        except AwsError as error:
            if error.code != "RepositoryAlreadyExistsException":
                raise
            return False
        return True

    def sign_in(self, docker: Docker, registry: str, ecr: Any | None = None) -> None:
        """Sign Docker in to a registry. The password is passed on standard input, so that no process list shows it.

        `ecr`: the client of the registry's region, if it is not the image's.
        """
        match = _ECR_HOST.fullmatch(registry)
        accounts: Mapping[str, Any] = {"registryIds": [match[1]]} if match else {}
        with aws_errors(f"no authorization token for {registry}"):
            data = (ecr or self._ecr).get_authorization_token(**accounts)["authorizationData"][0]
        user, _, password = base64.b64decode(data["authorizationToken"]).decode().partition(":")
        docker.sign_in(registry, user, password)

    def _known_tags(self) -> str:
        try:
            tags = self._recent_tags()
        except AwsError as error:
            return f"its tags cannot be listed: {error.code}"
        return f"the newest are {', '.join(tags)}" if tags else "it has no images"

    def _recent_tags(self) -> list[str]:
        with aws_errors(f"the images of {self.repository} cannot be listed"):
            pages = self._ecr.get_paginator("describe_images").paginate(repositoryName=self.repository)
            images = [image for page in pages for image in page["imageDetails"] if image.get("imageTags")]
        images.sort(key=lambda image: str(image.get("imagePushedAt", "")), reverse=True)
        return [tag for image in images for tag in image["imageTags"]][:_RECENT]


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
