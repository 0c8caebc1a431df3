"""A simulated AWS account with a bucket and an image, and a project whose jobs it runs."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3

from tests.support.commands import command_environ
from tests.support.preloaded import Preloaded
from tests.support.processes import free_port
from tests.support.waiting import deadline_s, eventually

ACCOUNT = "123456789012"
REGION = "us-west-2"
BUCKET = f"sagemaker-{REGION}-{ACCOUNT}"
PREFIX = "rlvr-experiments"
TAG = "20261122"
SETTINGS = f"""\
region: {REGION}
prefix: {PREFIX}
repository: rlvr-experiments
role: SageMakerRole
"""


def client(service: str, url: str, region: str = REGION) -> Any:
    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    return boto3.client(service, endpoint_url=url, region_name=region, **keys)


@dataclass
class Account:
    """moto's server, and where it keeps the containers' folders."""

    url: str
    folder: Path
    environ: dict[str, str]
    _submit: Preloaded = field(default_factory=lambda: Preloaded("ng_submit", "boto3"))
    """One for each account, because one account is in another network namespace."""

    def client(self, service: str, region: str = REGION) -> Any:
        return client(service, self.url, region)

    def prepare(self) -> None:
        """Create the bucket and an image."""
        self.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        ecr = self.client("ecr")
        ecr.create_repository(repositoryName="rlvr-experiments")
        kind = "application/vnd.docker.distribution.manifest.v2+json"
        manifest = {"schemaVersion": 2, "mediaType": kind, "config": {"digest": "sha256:0"}, "layers": []}
        ecr.put_image(repositoryName="rlvr-experiments", imageTag=TAG, imageManifest=json.dumps(manifest))

    def fail(self, match: str, status: int, body: str, times: int = 1000, **more: Any) -> None:
        """Answer requests that contain `match` with an error."""
        fault = {"match": match, "status": status, "body": body, "times": times, **more}
        request = urllib.request.Request(f"{self.url}/shim/faults", json.dumps(fault).encode())
        urllib.request.urlopen(request).close()

    def actions(self, application: str) -> set[str]:
        """IAM actions of the requests of programs with this AWS_SDK_UA_APP_ID."""
        with urllib.request.urlopen(f"{self.url}/shim/actions/{application}") as answer:
            return set(json.load(answer))

    def keys(self, prefix: str = "") -> list[str]:
        """Keys below the project's prefix."""
        pages = self.client("s3").get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{PREFIX}/{prefix}")
        found = [item["Key"] for page in pages for item in page.get("Contents", ())]
        return [key.removeprefix(f"{PREFIX}/{prefix}") for key in found]

    def put(self, key: str, data: bytes) -> None:
        self.client("s3").put_object(Bucket=BUCKET, Key=f"{PREFIX}/{key}", Body=data)

    def read(self, key: str) -> bytes:
        data: bytes = self.client("s3").get_object(Bucket=BUCKET, Key=f"{PREFIX}/{key}")["Body"].read()
        return data

    def job(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client("sagemaker").describe_training_job(TrainingJobName=name)
        return found

    def output(self, name: str, host: str = "algo-1") -> str:
        return (self.folder / name / host / "log").read_text()

    def ng_submit(
        self, project: Path, *words: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the command in the project."""
        return self._submit.run(words, cwd=project, env={**self.environ, **(env or {})})


@contextlib.contextmanager
def running_account(
    folder: Path, ip: str = "127.0.0.1", prefix: Sequence[str] = (), hosts: Mapping[str, Sequence[str]] | None = None
) -> Iterator[Account]:
    """Start the server; `prefix` runs it in a network namespace with the address `ip`."""
    port = free_port()
    containers = folder / "containers"
    containers.mkdir()
    command = [*prefix, sys.executable, "-m", "tests.external.aws.moto_server", ip, str(port), str(containers)]
    environ = {
        **command_environ(),
        "ROLLYARD_SAGEMAKER_ENDPOINT_URL": f"http://{ip}:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(folder / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "none"),
    }
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_REGION"):
        environ.pop(name, None)
    with (folder / "moto.log").open("wb") as log:
        process = subprocess.Popen([*command, json.dumps(dict(hosts or {}))], env=environ, stdout=log, stderr=log)
    try:
        check = [*prefix, sys.executable, "-c", f"import socket; socket.create_connection(('{ip}', {port}), 1)"]

        def answers() -> bool:
            assert process.poll() is None, (folder / "moto.log").read_text()
            return subprocess.run(check, capture_output=True, check=False).returncode == 0

        eventually("moto's server", answers)
        yield Account(f"http://{ip}:{port}", containers, environ)
    finally:
        process.terminate()
        try:
            process.wait(deadline_s())
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
