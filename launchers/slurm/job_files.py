"""The files of a job's folder: what to run (job.json), how it was submitted (submission.json), and the batch script.

The batch script contains no value of the user's except two quoted paths. The command and its environment variables are
read from job.json by the runner, because `sbatch --export` splits values at commas.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from rollyard.launchers.slurm.client.time_limit import seconds_of
from rollyard.launchers.slurm.job_types import JobSpec
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.io.jsonl import replace
from rollyard.records.types import Record

JOB_FILE, SUBMISSION_FILE, SCRIPT, LOGS = "job.json", "submission.json", "job.sh", "logs"
_OWN_OPTIONS = (
    *("array", "chdir", "comment", "dependency", "error", "export", "export-file", "gres", "job-name"),
    *("kill-on-invalid-dep", "no-requeue", "nodes", "open-mode", "output", "parsable", "requeue", "signal", "time"),
    *("wait", "wrap"),
)
_OWN_SHORT = "aDceJNodotW"


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
        name = argument.partition("=")[0]
        own = name[2:] in _OWN_OPTIONS if name.startswith("--") else argument[:1] == "-" and argument[1:2] in _OWN_SHORT
        if own:
            raise OperatorError(
                f"sbatch_args contains {argument!r}, which the launcher sets itself; use the launcher's option"
            )
        if not argument.startswith("-"):
            raise OperatorError(f"sbatch_args contains {argument!r}; expected options such as --qos=high")
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
        job = folder / JOB_FILE
        temporary = folder / f".{JOB_FILE}.{os.getpid()}.private"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(ChainJob(chain=chain, spec=spec).model_dump_json(indent=2).encode() + b"\n")
            file.flush()
            os.fsync(fd)
        temporary.replace(job)
    except OSError as error:
        raise RunError(f"cannot write {folder / JOB_FILE}: {error.strerror}") from error
    replace(folder / SCRIPT, script(folder).encode())


def script(folder: Path) -> str:
    """Return the batch script. `exec`, so that signals reach the runner itself.

    Until the runner has installed its handler, SIGUSR1 is ignored; it would end the job. A signal that is lost in this
    way does no harm, because the runner also watches the time itself.
    """
    runner = [sys.executable, "-P", "-m", "rollyard.launchers.slurm.job_runner", str(folder)]
    return f'#!/bin/bash\ntrap "" USR1\nexec {shlex.join(runner)} "$@"\n'


def _problem(error: OSError | ValidationError) -> str:
    return str(error.strerror) if isinstance(error, OSError) else error.errors()[0]["msg"]


def read_job(folder: Path) -> ChainJob:
    """Read job.json. Raises RunError if it is missing or invalid."""
    try:
        return ChainJob.model_validate_json((folder / JOB_FILE).read_bytes())
    except (OSError, ValidationError) as error:
        raise RunError(f"{folder / JOB_FILE} cannot be read: {_problem(error)}") from error


def read_submission(folder: Path) -> Submission | None:
    """Read submission.json; None if the job was never submitted. Raises RunError if it is invalid."""
    path = folder / SUBMISSION_FILE
    try:
        return Submission.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise RunError(f"{path} cannot be read: {_problem(error)}") from error


def write_submission(folder: Path, submission: Submission) -> None:
    """Write submission.json, synced."""
    replace(folder / SUBMISSION_FILE, submission.model_dump_json().encode() + b"\n")


def comment(chain: str, position: int) -> str:
    """Return the comment by which a job of a chain is found, also if sbatch did not return its id."""
    return f"{chain_comment(chain)}{position}"


def log_file(folder: Path, job_id: str) -> Path:
    """Return the path of a job's log, to which all its restarts append."""
    return folder / LOGS / f"slurm-{job_id}.out"


def chain_comment(chain: str) -> str:
    """Return the beginning of the comment of all jobs of a chain."""
    return f"rollyard:{chain}:"


def sbatch_arguments(spec: JobSpec, chain: str, position: int, dependencies: Sequence[str] = ()) -> list[str]:
    """Return the arguments of sbatch for the job at a position of its chain, which starts at 1.

    --requeue: after preemption or the loss of a node, SLURM starts the same job again, even if it had not yet queued a
    successor; the runner treats that as a further attempt.
    """
    log = str(log_file(spec.folder, "\0")).replace("%", "%%").replace("\0", "%j")
    arguments = [
        f"--job-name={spec.name}",
        f"--comment={comment(chain, position)}",
        f"--output={log}",
        f"--error={log}",
        "--open-mode=append",
        "--export=ALL",
        "--requeue",
        f"--nodes={spec.nodes}",
        f"--time={spec.time}",
    ]
    if spec.nodes > 1:
        arguments.append("--ntasks-per-node=1")
    if spec.gpus_per_node:
        arguments.append(f"--gres=gpu:{spec.gpus_per_node}")
    if spec.drain_before_s:
        arguments.append(f"--signal=B:USR1@{spec.drain_before_s}")
    if spec.account:
        arguments.append(f"--account={spec.account}")
    if spec.partition:
        arguments.append(f"--partition={spec.partition}")
    if dependencies:
        arguments += [f"--dependency={','.join(dependencies)}", "--kill-on-invalid-dep=yes"]
    return [*arguments, *spec.sbatch_args, str(spec.folder / SCRIPT), str(position), chain]
