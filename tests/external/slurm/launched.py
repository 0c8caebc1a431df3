"""Launcher: submits small Python programs as chains, and waits for what becomes of them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from rollyard.launchers.slurm.client import QueuedJob, SlurmClient
from rollyard.launchers.slurm.job import JobSpec, JobState, SubmittedJob, log_file, read_submission
from rollyard.launchers.slurm.scheduler import ChainEvent, ChainRecord, JobAttempt, Scheduler, jobs_of
from rollyard.records.data_files import INSTALLED
from tests.external.slurm.cluster import Cluster
from tests.support.processes import parent_of
from tests.support.waiting import deadline_s, eventually

RAY = next(
    (path for path in (Path(sys.executable).parent, INSTALLED / ".venv-external/bin") if (path / "ray").exists()), None
)
"""The folder of the programs of an environment with Ray."""
NODES = """
import ray
ray.init(address=sys.argv[1].removeprefix("+ray_head_node_address="), log_to_driver=False)
print("NODES", len([node for node in ray.nodes() if node["Alive"]]), ray.cluster_resources().get("GPU"), sys.argv[1])
assert os.environ["RAY_ADDRESS"] in sys.argv[1]
"""
ENDS_WHEN_TOLD = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))\nif START == 1: time.sleep(600)"
WITHOUT_SIGNAL = """#!/bin/bash
for argument; do shift; [[ $argument == --signal=* ]] || set -- "$@" "$argument"; done
PATH=${PATH#*:} exec sbatch "$@"
"""
"""An sbatch that asks for no signal before the time limit."""


class Launched:
    """A submitted chain."""

    def __init__(self, launcher: Launcher, job: SubmittedJob) -> None:
        self._launcher = launcher
        self.job = job
        self.folder = job.folder

    @property
    def chain(self) -> str:
        submission = read_submission(self.folder)
        assert submission is not None
        return submission.chain

    def events(self) -> list[ChainEvent]:
        return ChainRecord(self.folder, self.chain).events()

    def attempts(self) -> list[JobAttempt]:
        return self._launcher.scheduler.attempts(self.job)

    def ends(self) -> list[JobState]:
        """The states in which its attempts ended."""
        return [attempt.state for attempt in self.attempts()]

    def state(self) -> JobState:
        return self._launcher.scheduler.states([self.job])[self.job.job_id]

    def log(self, job_id: str | None = None) -> str:
        path = log_file(self.folder, job_id or self.job.job_id)
        return path.read_text() if path.exists() else ""

    def queued(self) -> list[QueuedJob]:
        """Its jobs that are waiting or running."""
        listed = jobs_of(self._launcher.client, [self.chain])[self.chain]
        return [job for job in listed if job.state.alive]

    def until_running(self, starts: int = 1) -> int:
        """Wait until the command has been started `starts` times. Returns its latest process id."""
        path = self.folder / "started"

        def pids() -> list[str]:
            return path.read_text().split() if path.exists() else []

        eventually(f"{starts} starts", lambda: len(pids()) >= starts)
        return int(pids()[-1])

    def until_over(self) -> JobState:
        """Wait until no job of the chain is left in SLURM's queue. Returns the chain's state."""
        eventually("the end of the chain", lambda: not self.state().alive and not self.queued())
        return self.state()


class Launcher:
    """Submits programs to the private SLURM."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.client = SlurmClient(cluster.environment, deadline_s())
        self.scheduler = Scheduler(self.client)
        self._folder = folder
        self._number = 0
        self.slow: dict[str, Launched] = {}

    def spec(self, program: str, *arguments: str, **settings: Any) -> JobSpec:
        """A job that runs a Python program. It notes its process id first, and `START` is the number of its start."""
        self._number += 1
        folder = self._folder / f"job {self._number} 'of' $(tests) 100%j"
        counted = (
            "import os, pathlib, signal, sys, time\n"
            f"started = pathlib.Path({str(folder / 'started')!r})\n"
            "with started.open('a') as file: file.write(f'{os.getpid()}\\n')\n"
            "START = len(started.read_text().split())\n"
        )
        command = (settings.pop("python", sys.executable), "-c", counted + program, *arguments)
        defaults = {"name": f"test {self._number}", "time": "10", "gpus_per_node": 0, "drain_before_s": 0}
        return JobSpec(folder=folder, command=command, **{**defaults, **settings})

    def submit(self, program: str, *arguments: str, **settings: Any) -> Launched:
        return self.submit_spec(self.spec(program, *arguments, **settings))

    def submit_spec(self, spec: JobSpec, path: Path | None = None) -> Launched:
        """Submit a job. `path`: a folder that comes first in the PATH of the submitting shell."""
        environment = dict(self.cluster.environment)
        if path is not None:
            environment["PATH"] = f"{path}:{environment['PATH']}"
        job_id = Scheduler(SlurmClient(environment)).submit(spec)
        return Launched(self, SubmittedJob(name=spec.name, job_id=job_id, folder=spec.folder))

    def submit_slow(self) -> None:
        """Submit the jobs of test_slow_ends.py and test_two_nodes.py."""
        on_n1 = {"sbatch_args": ("--nodelist=n1",)}
        # SLURM may send the signal a minute earlier than asked, and does so here.
        told: dict[str, Any] = {"time": "1", "drain_before_s": 50, "max_retries": 0, **on_n1}
        self.slow["told by SLURM"] = self.submit(ENDS_WHEN_TOLD, **told)
        self.slow["told by the runner"] = self.submit_spec(
            self.spec(ENDS_WHEN_TOLD, **told), self._program("sbatch", WITHOUT_SIGNAL)
        )
        stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nif START == 1: time.sleep(600)"
        self.slow["time limit"] = self.submit(stubborn, time="1", **on_n1)
        self.slow["forgotten"] = forgotten = self.submit("time.sleep(600)", max_retries=0, **on_n1)
        runner = parent_of(forgotten.until_running())
        self.cluster.client("scontrol", "hold", forgotten.queued()[-1].job_id)
        os.kill(runner, signal.SIGKILL)
        if RAY is not None:
            two_nodes: dict[str, Any] = {"nodes": 2, "gpus_per_node": 2, "sbatch_args": ("--cpus-per-task=2",)}
            two_nodes |= {"ray_address_argument": "+ray_head_node_address=", "max_retries": 0}
            self.slow["ray"] = self.submit_spec(self.spec(NODES, python=str(RAY / "python"), **two_nodes), RAY)
        self.slow["killed"] = self.submit("os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)", chain=False, **on_n1)

    def _program(self, name: str, text: str) -> Path:
        """Write a program. Returns its folder."""
        folder = self._folder / "programs"
        folder.mkdir()
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
        return folder
