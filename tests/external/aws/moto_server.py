"""moto's server, with what it lacks for SageMaker: `python -m tests.external.aws.moto_server HOST PORT FOLDER [HOSTS]`.

Training jobs have unique names, keep their environment, and run their ContainerEntrypoint as real processes, one for
each host: InProgress until all end, then Completed, Failed or Stopped. HOSTS is JSON: a host's name -> the command
prefix that runs a process on it. Lines of output go to CloudWatch. POST /shim/faults makes requests fail.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from moto.core.responses import ActionResult
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from moto.sagemaker import models, responses
from moto.sagemaker.exceptions import ResourceInUseException
from werkzeug.serving import run_simple

from tests.external.aws.account import client

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
STOP_GRACE_S = 120.0
Simulations = dict[str, "Simulation"]


class Simulation(threading.Thread):
    """The processes of one training job."""

    def __init__(
        self, job: Any, environment: dict[str, str], hosts: dict[str, list[str]], folder: Path, url: str
    ) -> None:
        super().__init__(daemon=True)
        self._job = job
        self._folder = folder / job.training_job_name
        self._url = url
        count = job.resource_config["InstanceCount"]
        self._hosts = dict(list(hosts.items())[:count]) or {f"algo-{number}": [] for number in range(1, count + 1)}
        self._environment = environment
        self.stopped_at: float | None = None

    def run(self) -> None:
        job = self._job
        processes = {host: self._start_host(host, prefix) for host, prefix in self._hosts.items()}
        sent = dict.fromkeys(processes, 0)
        failed = ""
        signalled = False
        while any(process.poll() is None for process in processes.values()):
            for host in processes:
                sent[host] = self._send_log(host, sent[host])
            failed = failed or next((host for host, process in processes.items() if process.poll()), "")
            if (failed or self.stopped_at is not None) and not signalled:
                signalled = True
                for process in processes.values():
                    process.send_signal(signal.SIGTERM)
            if self.stopped_at is not None and time.monotonic() > self.stopped_at + STOP_GRACE_S:
                for process in processes.values():
                    process.kill()
            time.sleep(0.1)
        failed = failed or next((host for host, process in processes.items() if process.returncode), "")
        for host in processes:
            self._send_log(host, sent[host])
        job.training_end_time = models.utcnow()
        if self.stopped_at is not None:
            status = "Stopped"
        elif failed:
            status = "Failed"
            failure = self._folder / failed / "output/failure"
            job.failure_reason = failure.read_text()[:1024] if failure.is_file() else "no reason"
        else:
            status = "Completed"
        job.secondary_status = job.training_job_status = status

    def _start_host(self, host: str, prefix: list[str]) -> subprocess.Popen[bytes]:
        root = self._folder / host
        (root / "input/config").mkdir(parents=True)
        resources = {"current_host": host, "hosts": list(self._hosts)}
        (root / "input/config/resourceconfig.json").write_text(json.dumps(resources))
        (root / "input/config/hyperparameters.json").write_text(json.dumps(self._job.hyper_parameters))
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": os.environ.get("HOME", "/tmp"),
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "SM_NUM_GPUS": "0",
            "TRAINING_JOB_NAME": self._job.training_job_name,
            "ROLLYARD_SAGEMAKER_ROOT": str(root),
            **self._environment,
        }
        entrypoint = self._job.algorithm_specification["ContainerEntrypoint"]
        program = [sys.executable, *entrypoint[1:]] if entrypoint[0] == "python" else entrypoint
        with (root / "log").open("wb") as log:
            return subprocess.Popen([*prefix, *program], env=environment, cwd=root, stdout=log, stderr=log)

    def _send_log(self, host: str, sent: int) -> int:
        """Send the lines from the byte `sent` on."""
        data = (self._folder / host / "log").read_bytes()[sent:]
        lines = data[: data.rfind(b"\n") + 1].decode("utf-8", "replace").splitlines()
        if not lines:
            return sent
        logs = client("logs", self._url)
        stream = f"{self._job.training_job_name}/{host}-1"
        with contextlib.suppress(logs.exceptions.ResourceAlreadyExistsException):
            logs.create_log_group(logGroupName=LOG_GROUP)
        with contextlib.suppress(logs.exceptions.ResourceAlreadyExistsException):
            logs.create_log_stream(logGroupName=LOG_GROUP, logStreamName=stream)
        now = int(time.time() * 1000)
        events = [{"timestamp": now, "message": line or " "} for line in lines]
        logs.put_log_events(logGroupName=LOG_GROUP, logStreamName=stream, logEvents=events)
        return int(sent + data.rfind(b"\n") + 1)


def extend(hosts: dict[str, list[str]], folder: Path, url: str) -> None:
    """Replace moto's training jobs by simulated ones."""
    simulations: Simulations = {}
    lock = threading.Lock()
    create = responses.SageMakerResponse.create_training_job

    def create_training_job(self: Any) -> ActionResult:
        name = self._get_param("TrainingJobName")
        with lock:
            if name in self.sagemaker_backend.training_jobs:
                raise ResourceInUseException(f"Training job names must be unique: {name}")
            response = create(self)
            job = self.sagemaker_backend.training_jobs[name]
            job.environment = self._get_param("Environment") or {}
            job.training_job_status, job.secondary_status, job.training_end_time = "InProgress", "Training", None
            simulations[name] = Simulation(job, job.environment, hosts, folder, url)
        if job.algorithm_specification.get("ContainerEntrypoint"):
            simulations[name].start()
        return response

    def stop_training_job(self: Any) -> ActionResult:
        name = self._get_param("TrainingJobName")
        job = self.sagemaker_backend.training_jobs[name]
        job.training_job_status = job.secondary_status = "Stopping"
        simulations[name].stopped_at = time.monotonic()
        return ActionResult({})

    responses.SageMakerResponse.create_training_job = create_training_job
    responses.SageMakerResponse.stop_training_job = stop_training_job


def action_of(environ: dict[str, Any]) -> str:
    """The IAM action of a request."""
    service = environ.get("HTTP_AUTHORIZATION", "").partition("/aws4_request")[0].rpartition("/")[2]
    if target := environ.get("HTTP_X_AMZ_TARGET"):
        return f"{service}:{target.rpartition('.')[2]}"
    if service != "s3":
        return f"{service}:{environ['REQUEST_METHOD']}"
    is_bucket = environ["PATH_INFO"].strip("/").count("/") == 0
    objects = {"GET": "GetObject", "HEAD": "GetObject"} | {"PUT": "PutObject", "POST": "PutObject"}
    objects["DELETE"] = "DeleteObject"
    return "s3:ListBucket" if is_bucket else f"s3:{objects[environ['REQUEST_METHOD']]}"


class Faults:
    """WSGI middleware: answers requests with the errors that a test asks for."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._faults: list[dict[str, Any]] = []
        self._actions: dict[str, set[str]] = {}

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/shim/faults":
            self._faults.append(json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))))
            start_response("204 No Content", [])
            return []
        # AWS_SDK_UA_APP_ID of the program that sends a request
        application = environ.get("HTTP_USER_AGENT", "").partition(" app/")[2].partition(" ")[0]
        if environ["PATH_INFO"].startswith("/shim/actions/"):
            actions = sorted(self._actions.get(environ["PATH_INFO"].removeprefix("/shim/actions/"), ()))
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(actions).encode()]
        self._actions.setdefault(application, set()).add(action_of(environ))
        headers = (environ.get(f"HTTP_{name}", "") for name in ("X_AMZ_TARGET", "AUTHORIZATION"))
        place = f"{environ['PATH_INFO']}?{environ.get('QUERY_STRING', '')}"
        request = " ".join((environ["REQUEST_METHOD"], place, *headers))
        for fault in self._faults:
            if fault["match"] in request and fault["times"] > 0:
                fault["times"] -= 1
                if fault.get("after"):
                    list(self._application(environ, lambda *_: None))  # the request has its effect, but no response
                else:
                    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                time.sleep(fault.get("delay_s", 0))
                start_response(f"{fault['status']} Fault", [("Content-Type", "text/xml")])
                return [fault["body"].encode()]
        return self._application(environ, start_response)


def main() -> None:
    host, port, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    hosts = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}
    extend(hosts, folder, f"http://{host}:{port}")
    application = DomainDispatcherApplication(create_backend_app)
    run_simple(host, port, Faults(application), threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main()
