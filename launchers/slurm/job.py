"""A SLURM job: what to submit, how jobs end, and the files of a job's folder.

The folder holds what to run (job.json), how it was submitted (submission.json), and the batch script. The script
contains no value of the user's except two quoted paths. The command and its environment variables are read from
job.json by the runner, because `sbatch --export` splits values at commas.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.jsonl import replace
from rollyard.records.types import Record

ContainerRuntime = Literal["none", "pyxis", "apptainer"]


class JobOptions(Record):
    time: str = "2:0:0"
    account: str | None = None
    partition: str | None = "batch"
    container: str | None = None
    """Image of Pyxis or Apptainer; None: the job runs directly on the node."""
    container_runtime: ContainerRuntime = "none"
    mounts: tuple[str, ...] = ()
    sbatch_args: tuple[str, ...] = ()
    """More arguments of `sbatch`, each passed unchanged: `--qos=high`."""
    max_retries: int = Field(default=3, ge=0)
    """How many jobs of the chain may fail before it ends. Time limits, preemption and lost nodes do not count."""
    drain_before_s: int = Field(default=120, ge=0, le=65535)
    """SLURM sends SIGUSR1 this long before the time limit; the collector then finishes its episodes."""


class JobSpec(JobOptions):
    """A job to submit. Values reach the job as arguments and environment variables, never through a shell string."""

    name: str
    folder: Path
    """The job's folder on the shared file system: script, command and logs. It exists before the job is submitted."""
    command: tuple[str, ...]
    """The program and its arguments, run once in the job's first node."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables of the command, in addition to those of the shell that submits the job."""
    working_directory: Path | None = None
    """Working directory of the command; None: that in which the job is submitted."""
    nodes: int = Field(default=1, ge=1)
    gpus_per_node: int = Field(default=8, ge=0)
    """GPUs per node; 0 requests no generic resource."""
    after_ok: tuple[str, ...] = ()
    chain: bool = True
    """Whether each job queues a successor that continues its work. False for a single job that other jobs wait for."""
    max_jobs: int = Field(default=100, ge=1)
    """How many times the command may be started, so that a chain ends even if every job reaches its time limit."""
    ray_address_argument: str | None = None
    """With several nodes: the address of their Ray cluster is appended to this text, and the result to the command:
    `+ray_head_node_address=`."""

    @model_validator(mode="before")
    @classmethod
    def _without_retired_settings(cls, data: Any) -> Any:
        """Read what versions before 0.2 wrote: a limit of the whole chain, and `worker=` instead of `shard=`."""
        if isinstance(data, dict):
            data = {key: value for key, value in data.items() if key != "max_walltime_s"}
            command = data.get("command")
            if isinstance(command, list | tuple):
                data["command"] = [word for word in command if not str(word).startswith("worker=")]
        return data


class SubmittedJob(Record):
    name: str
    job_id: str
    """The id from `sbatch --parsable`, without the cluster's name."""
    folder: Path


class JobState(StrEnum):
    """The state of a job. The names are SLURM's, except the last two; SLURM shows REQUEUED only briefly."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    PREEMPTED = "PREEMPTED"
    NODE_FAIL = "NODE_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    """The job could not end before its `--deadline`."""
    REQUEUED = "REQUEUED"
    """SLURM put the job back into the queue, after preemption, a lost node or `scontrol requeue`."""
    DRAINED = "DRAINED"
    """The command stopped early because it was told to: before the time limit, or by a signal to the job."""
    UNKNOWN = "UNKNOWN"
    """SLURM no longer knows the job, and it left no record of its end."""

    @property
    def alive(self) -> bool:
        return self in (JobState.PENDING, JobState.RUNNING)

    @property
    def counts(self) -> bool:
        asked = (JobState.COMPLETED, JobState.CANCELLED, JobState.DRAINED)
        ended_by_slurm = (JobState.TIMEOUT, JobState.PREEMPTED, JobState.NODE_FAIL, JobState.REQUEUED)
        return not self.alive and self not in asked and self not in ended_by_slurm


JOB_FILE, SUBMISSION_FILE, SCRIPT, LOGS = "job.json", "submission.json", "job.sh", "logs"
_OWN_SBATCH_ARGS = {
    "job-name": "--jobname",
    "nodes": "--nodes",
    "time": "--time",
    "account": "--account",
    "partition": "--partition",
    **dict.fromkeys(("gres", "gpus", "gpus-per-node"), "--gpus"),
    **dict.fromkeys(("array", "chdir", "comment", "dependency", "error", "export", "export-file", "output"), ""),
    **dict.fromkeys(("kill-on-invalid-dep", "no-requeue", "open-mode", "parsable", "requeue", "signal"), ""),
    **dict.fromkeys(("wait", "wrap"), ""),
}
"""Options of sbatch that the launcher sets, and its flag for each if there is one."""


class Submission(Record):
    """Written before the job is submitted, so that it is found if the launcher is killed before it learns the id."""

    chain: str
    """Identifies the chain; part of the comment of each of its jobs."""
    name: str
    job_id: str | None = None
    submitted: float


class ChainJob(Record):
    """job.json: what the runner executes."""

    chain: str
    spec: JobSpec


def check_spec(spec: JobSpec) -> None:
    """Raise OperatorError for a job that sbatch, or the runner, could not handle."""
    if not spec.command:
        raise OperatorError(f"job {spec.name!r} has no command")
    limit = seconds_of(spec.time)
    if limit is not None and spec.drain_before_s >= limit:
        raise OperatorError(
            f"time={spec.time} is not longer than drain_before_s={spec.drain_before_s}: the job would be told to stop "
            "as soon as it starts; allow more time, or drain later"
        )
    if "\\" in str(spec.folder) or "\n" in str(spec.folder):
        raise OperatorError(
            f"{str(spec.folder)!r} contains a backslash or a line break, which SLURM does not accept in the path of a "
            "log; choose another folder"
        )
    for argument in spec.sbatch_args:
        if not argument.startswith("--"):
            raise OperatorError(f"sbatch_args contains {argument!r}; expected long options such as --qos=high")
        if (flag := _OWN_SBATCH_ARGS.get(argument[2:].partition("=")[0])) is not None:
            raise OperatorError(
                f"sbatch_args contains {argument!r}, which the launcher sets itself{flag and f'; use {flag}'}"
            )
    for text in (*spec.command, *spec.environment, *spec.environment.values()):
        if "\0" in text:
            raise OperatorError(f"job {spec.name!r}: {text!r} contains a null character, which no argument can contain")


def write_job(spec: JobSpec, chain: str) -> None:
    """Write job.json, the batch script and the folder of the logs.

    job.json is readable by its owner only, since environment variables may be secrets.
    """
    folder = spec.folder
    try:
        (folder / LOGS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot write {folder / JOB_FILE}: {error.strerror}") from error
    replace(folder / JOB_FILE, ChainJob(chain=chain, spec=spec).model_dump_json(indent=2).encode() + b"\n", mode=0o600)
    replace(folder / SCRIPT, script(folder).encode())


def script(folder: Path) -> str:
    """Return the batch script. `exec`, so that signals reach the runner itself.

    Until the runner has installed its handler, SIGUSR1 is ignored; it would end the job. A signal that is lost in this
    way does no harm, because the runner also watches the time itself.
    """
    runner = [sys.executable, "-P", "-m", "rollyard.launchers.slurm.job_runner", str(folder)]
    return f'#!/bin/bash\ntrap "" USR1\nexec {shlex.join(runner)} "$@"\n'


M = TypeVar("M", bound=Record)


def read_record(path: Path, model: type[M]) -> M:
    """Read a JSON file. Raises RunError if it is invalid, FileNotFoundError if it does not exist."""
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise
    except (OSError, ValidationError) as error:
        problem = error.strerror if isinstance(error, OSError) else error.errors()[0]["msg"]
        raise RunError(f"{path} cannot be read: {problem}") from error


def read_submission(folder: Path) -> Submission | None:
    try:
        return read_record(folder / SUBMISSION_FILE, Submission)
    except FileNotFoundError:
        return None


def write_submission(folder: Path, submission: Submission) -> None:
    replace(folder / SUBMISSION_FILE, submission.model_dump_json().encode() + b"\n")


def comment(chain: str, position: int | str = "") -> str:
    """Return the comment by which a job of a chain is found, also if sbatch did not return its id.

    Without a position: the beginning of the comments of all its jobs.
    """
    return f"rollyard:{chain}:{position}"


def log_file(folder: Path, job_id: str) -> Path:
    """Return the path of a job's log, to which all its restarts append."""
    return folder / LOGS / f"slurm-{job_id}.out"


def sbatch_arguments(spec: JobSpec, chain: str, position: int, dependencies: Sequence[str] = ()) -> list[str]:
    """Return the arguments of sbatch for the job at a position of its chain, which starts at 1.

    --requeue: after preemption or the loss of a node, SLURM starts the same job again, even if it had not yet queued a
    successor; the runner treats that as a further attempt.
    """
    log = str(log_file(spec.folder, "\0")).replace("%", "%%").replace("\0", "%j")
    arguments = [
        *(f"--job-name={spec.name}", f"--comment={comment(chain, position)}", f"--output={log}", f"--error={log}"),
        *("--open-mode=append", "--export=ALL", "--requeue", f"--nodes={spec.nodes}", f"--time={spec.time}"),
    ]
    optional = {
        "--ntasks-per-node=1": spec.nodes > 1,
        f"--gres=gpu:{spec.gpus_per_node}": spec.gpus_per_node,
        f"--signal=B:USR1@{spec.drain_before_s}": spec.drain_before_s,
        f"--account={spec.account}": spec.account,
        f"--partition={spec.partition}": spec.partition,
        f"--dependency={','.join(dependencies)}": dependencies,
        "--kill-on-invalid-dep=yes": dependencies,
    }
    arguments += [argument for argument, wanted in optional.items() if wanted]
    return [*arguments, *spec.sbatch_args, str(spec.folder / SCRIPT), str(position), chain]


_FORMAT = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")


def seconds_of(time: str) -> float | None:
    """Return the seconds of a time limit; None if it is unlimited.

    Formats: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes,
    days-hours:minutes:seconds. Raises OperatorError for any other.
    """
    if time.upper() in ("UNLIMITED", "INFINITE"):
        return None
    if not (match := _FORMAT.fullmatch(time)):
        raise OperatorError(f"time={time}: expected hours:minutes:seconds, days-hours:minutes:seconds, or minutes")
    days, first, second, third = (int(part) if part else None for part in match.groups())
    if days is not None:
        hours, minutes, seconds = first or 0, second or 0, third or 0
    elif third is not None:
        hours, minutes, seconds = first or 0, second or 0, third
    else:
        hours, minutes, seconds = 0, first or 0, second or 0
    return float((days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds)
