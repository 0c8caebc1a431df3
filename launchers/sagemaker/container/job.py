"""Job: one host of a SageMaker job from its start to its exit status, with an evaluation beside a training."""

from __future__ import annotations

import re
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from rollyard.launchers.sagemaker.container.inputs import JobInputs, run_name
from rollyard.launchers.sagemaker.container.programs import STOP_GRACE_S, JobStopped, Program, StopSignal
from rollyard.launchers.sagemaker.container.ray_cluster import (
    LINK_PORT,
    WAIT_S,
    HeadLink,
    RayCluster,
    connect,
    read_status,
)
from rollyard.launchers.sagemaker.container.uploader import RunUploader, S3Uploader
from rollyard.launchers.sagemaker.job_parameters import JobEnvironment, JobParameters, write_failure
from rollyard.launchers.sagemaker.settings import VARIABLE_PREFIX
from rollyard.records import s3
from rollyard.records.errors import Failure, OperatorError, RunError

EXIT_STOPPED = 143
FINAL_UPLOAD_S = 6 * 3600.0
STOPPED_UPLOAD_S = 45.0
"""With the program's grace period, this stays below SageMaker's 120 s."""
_POLL_S = 0.2
_STAMP = re.compile(r"\d{8}-\d{6}$")
_UNSAFE = re.compile(r"[^\w.-]+")


@dataclass
class Job:
    environment: JobEnvironment
    parameters: JobParameters
    environ: Mapping[str, str]
    stop: StopSignal
    print_line: Callable[[str], None]
    _run_dir: Path = Path()

    def run(self) -> int:
        """Do the work; return the exit status, and write the reason of a failure where SageMaker expects it."""
        try:
            status, reason = self._run()
        except JobStopped:
            status, reason = EXIT_STOPPED, ""
        except (OperatorError, RunError, Failure, OSError) as error:
            status, reason = 1, str(error)
        except Exception as error:
            traceback.print_exc()
            status, reason = 1, f"internal error: {type(error).__name__}: {error}"
        if reason:
            write_failure(self.environment.root, reason)
        return status

    def _run(self) -> tuple[int, str]:
        environment, parameters = self.environment, self.parameters
        inputs = JobInputs(environment, parameters, cache(self._s3_client), self.print_line)
        inputs.fetch_source()
        self._run_dir = environment.work / "run" / _run_name(parameters, environment)
        configs: dict[str, Path] = {}
        for name in {parameters.config, parameters.eval_config} - {None}:
            evaluation = name == parameters.eval_config or parameters.upload == "eval_output"
            configs[str(name)] = inputs.rewritten(str(name), self._run_dir / "output", evaluation=evaluation)
        for name in ("checkpoints", "traces", "logs", "output"):
            (self._run_dir / name).mkdir(parents=True, exist_ok=True)
        link = self._run_dir / "output" / "checkpoints"
        if parameters.upload == "checkpoints" and not link.is_symlink():
            # ng_train saves checkpoints below its output_dir: they are uploaded and evaluated as those of the run.
            link.symlink_to("../checkpoints")
        if parameters.config is not None:
            shutil.copyfile(environment.code / parameters.config, self._run_dir / "config.yaml")
        self.stop.preparing = False
        uploader = self._start_uploader()
        try:
            status, reason = self._work(configs)
        except (OperatorError, RunError, OSError) as error:
            status, reason = 1, str(error)
        if uploader is not None:
            problem = uploader.finish(STOPPED_UPLOAD_S if self.stop.received else FINAL_UPLOAD_S)
            if problem and not reason:
                status, reason = status or 1, f"files of the job are not in S3: {problem}"
        return status, reason

    def _work(self, configs: Mapping[str, Path]) -> tuple[int, str]:
        environment, several = self.environment, len(self.environment.hosts) > 1
        with_ray = self.parameters.ray == "always" or (self.parameters.ray == "auto" and several)
        if not with_ray:  # every host runs the program
            return self._run_programs(configs, None)
        cluster = self._cluster()
        try:
            if not environment.is_head:
                return self._follow_head(cluster)
            link = HeadLink()
            status = 1
            try:
                cluster.start_head()
                status, reason = self._run_programs(configs, cluster)
                return status, reason
            finally:
                link.end(status)
        finally:
            cluster.stop()

    def _follow_head(self, cluster: RayCluster) -> tuple[int, str]:
        """Serve the head's Ray until the head ends. This host ends with the same status."""
        head = self.environment.head
        link = connect(head, LINK_PORT, WAIT_S, lambda: self.stop.received)
        with link:
            cluster.join(self.environment.current_host)
            while not self.stop.received:
                status = read_status(link, 1.0)
                if status is not None:
                    self.print_line(f"the head {head} ended with status {status}")
                    return status, f"the head {head} failed with exit status {status}" if status else ""
                cluster.check()
        return EXIT_STOPPED, ""

    def _run_programs(self, configs: Mapping[str, Path], cluster: RayCluster | None) -> tuple[int, str]:
        parameters = self.parameters
        gpus = parameters.train_gpus if parameters.eval_config else None
        extra = {"RAY_ADDRESS": cluster.address} if cluster else {}
        watcher = self._watcher(configs) if parameters.eval_config else None
        name = "train" if watcher else "program"
        program = self._program(name, parameters.command, configs, parameters.config, gpus, extra)
        try:
            while program.poll() is None and not self.stop.event.wait(_POLL_S):
                if cluster is not None:
                    cluster.check()
                if watcher is not None:
                    watcher.check()
            if self.stop.received:
                self.print_line("the job is being stopped")
                if watcher is not None:
                    watcher.stop()
        finally:
            status = program.end(STOP_GRACE_S) if program.poll() is None else program.close()
            problem = watcher.finish() if watcher is not None else ""
        if problem:
            self.print_line(problem)
        if self.stop.received:
            return EXIT_STOPPED, ""
        reason = f"{program.command[0]} ended with exit status {status}: {program.last_line()}" if status else ""
        return status, reason

    def _watcher(self, configs: Mapping[str, Path]) -> CheckpointWatcher:
        parameters = self.parameters

        def start(command: Sequence[str]) -> Program:
            return self._program("eval", command, configs, parameters.eval_config, parameters.eval_gpus, {})

        final = parameters.final_eval_command
        return CheckpointWatcher(
            lambda: start(parameters.eval_command),
            (lambda: start(final)) if final else None,
            lambda: self.stop.received,
            self.print_line,
        )

    def _program(
        self,
        name: str,
        command: Sequence[str],
        configs: Mapping[str, Path],
        config: str | None,
        gpus: str | None,
        extra: Mapping[str, str],
    ) -> Program:
        values = {"{checkpoints}": self._run_dir / "checkpoints", "{run_dir}": self._run_dir}
        if config is not None:
            values["{config}"] = configs[config]
        words = list(command)
        for placeholder, value in values.items():
            words = [word.replace(placeholder, str(value)) for word in words]
        if not words:
            raise OperatorError("the job has no program: pass --entrypoint, or set train_command")
        if words[0] == "python":
            words[0] = sys.executable
        environment = {**self.environment.variables, **self.environ, **extra}
        traces = self._run_dir / "traces/trace.jsonl"
        environment |= {"RLVR_RUN_DIR": str(self._run_dir), "RLVR_TRACE_PATH": str(traces)}
        if self.parameters.s3 is not None:
            bucket, prefix = s3.split(self.parameters.s3)
            environment = {f"{VARIABLE_PREFIX}BUCKET": bucket, f"{VARIABLE_PREFIX}PREFIX": prefix} | environment
        if (source := self.environment.code / "src").is_dir():
            environment["PYTHONPATH"] = ":".join(filter(None, (str(source), environment.get("PYTHONPATH"))))
        if gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpus
        log = self._run_dir / "logs" / f"{name}.log"
        code = self.environment.code
        return Program(name, words, environment=environment, folder=code, log=log, print_line=self.print_line)

    def _cluster(self) -> RayCluster:
        parameters, environment = self.parameters, dict(self.environ)
        gpus = self.environment.num_gpus
        if parameters.eval_config and parameters.train_gpus:
            environment["CUDA_VISIBLE_DEVICES"] = parameters.train_gpus
            gpus = len(parameters.train_gpus.split(","))
        return RayCluster(
            head=self.environment.head,
            hosts=len(self.environment.hosts),
            num_gpus=gpus,
            arguments=parameters.ray_args,
            environment=environment,
            folder=self.environment.work,
            log=self._run_dir / "logs" / "ray.log",
            print_line=self.print_line,
            stopped=lambda: self.stop.received,
        )

    def _start_uploader(self) -> RunUploader | None:
        environment, parameters = self.environment, self.parameters
        if parameters.s3 is None:
            return None
        address = f"{parameters.s3}/{parameters.upload}/{environment.job}"
        if not environment.is_head:
            address = f"{address}/hosts/{environment.current_host}"
        uploader = S3Uploader(self._s3_client(), s3.split(address)[0])
        run = RunUploader(self._run_dir, address, uploader, parameters.upload_interval_s, self.print_line)
        run.start()
        return run

    def _s3_client(self) -> Any:
        return s3.client("a SageMaker job")


def _run_name(parameters: JobParameters, environment: JobEnvironment) -> str:
    """Return `run.name` of the config, else `<config stem>_<stamp>`.

    The stamp is that of the job, so that a restarted job continues in the same folder.
    """
    if parameters.config is not None and (name := run_name(environment.code / parameters.config)):
        return _UNSAFE.sub("_", name).lstrip(".") or "run"
    stem = _UNSAFE.sub("_", PurePosixPath(parameters.config).stem) if parameters.config else "run"
    stamp = found[0] if (found := _STAMP.search(environment.job)) else datetime.now().strftime("%Y%m%d-%H%M%S")
    return f"{stem}_{stamp}"


MAX_STARTS = 20
RESTART_PAUSE_S = 10.0
DRAIN_S = 120.0
"""After the training, the watching program gets this long to finish; the rest is evaluated afterwards."""


@dataclass
class CheckpointWatcher:
    """Restarts the watching program if it fails, and has the remaining checkpoints evaluated after the training."""

    start: Callable[[], Program]
    start_final: Callable[[], Program] | None
    """Starts a program that evaluates the remaining checkpoints and ends."""
    stopped: Callable[[], bool]
    print_line: Callable[[str], None]
    _starts: int = 1
    _restart_at: float = 0.0
    _program: Program | None = None

    def __post_init__(self) -> None:
        self._program = self.start()

    def check(self) -> None:
        """Start the program again if it has failed. A failing evaluation must not end the training."""
        if self._program is not None and (status := self._program.poll()) is not None:
            self._program.close()
            self.print_line(f"[eval] ended with exit status {status}: {self._program.last_line()}")
            self._program = None
            self._restart_at = time.monotonic() + RESTART_PAUSE_S
        if self._program is None and self._starts < MAX_STARTS and time.monotonic() >= self._restart_at:
            self._starts += 1
            self._program = self.start()

    def finish(self) -> str:
        """Finish evaluating. Returns why checkpoints are not evaluated; empty if all are."""
        if self._program is not None:
            if self.start_final is None:
                self._until_ended(self._program, DRAIN_S)
            self._program.end(10.0 if self.stopped() else 30.0)
            self._program = None
        if self.start_final is None or self.stopped():
            return ""
        final = self.start_final()
        self._until_ended(final, None)
        status = final.end(10.0)
        return f"the evaluation of the last checkpoints failed ({status}): {final.last_line()}" if status else ""

    def stop(self) -> None:
        if self._program is not None:
            self._program.terminate()

    def _until_ended(self, program: Program, limit_s: float | None) -> None:
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while program.poll() is None and not self.stopped() and (deadline is None or time.monotonic() < deadline):
            time.sleep(0.2)
