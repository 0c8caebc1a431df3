"""SlurmClient: runs sbatch, squeue, scontrol, sacct and scancel as argument lists, each with a time limit."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from rollyard.launchers.slurm.job import JobState
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.terminal import plain_line

TIMEOUT_S = 60.0
_MESSAGE_CHARACTERS = 1000
_JOB_ID = re.compile(r"(?:Submitted batch job )?(\d+(?:_\d+|_\[[^\]]*\])?(?:\+\d+)?)(?:;[^\s;]+)?")
_QUEUED = re.compile(r"\d[^|\s]*\|[A-Z_]+\|")
_AMBIGUOUS = ("timed out", "zero bytes were transmitted", "communication connection failure", "unexpected message")
_ENDINGS = {
    "TimeLimit": JobState.TIMEOUT,
    "NodeDown": JobState.NODE_FAIL,
    "DeadLine": JobState.DEADLINE,
    "OutOfMemory": JobState.OUT_OF_MEMORY,
}
"""Reasons of a job that SLURM ends; scancel leaves none."""
_NOT_INHERITED = ("SBATCH_ARRAY_INX", "SBATCH_WAIT", "SBATCH_EXPORT", "SBATCH_OPEN_MODE", "SBATCH_SIGNAL")
"""Variables that change what sbatch does in a way that its caller does not expect, such as waiting for the job."""


class SlurmError(RunError):
    pass


class SlurmTimeoutError(SlurmError):
    """A SLURM command gave no usable answer in time; whether it had an effect is unknown."""


class QueuedJob(NamedTuple):
    """A job as squeue lists it, which includes jobs that ended a few minutes ago (slurm.conf's MinJobAge)."""

    job_id: str
    """`123`, or `123_4` and `123_[5-9]` for tasks of an array."""
    state: JobState
    comment: str


class Standing(NamedTuple):
    name: str
    restarts: int
    ended: float | None
    """Unix time of its end, which lies in the future for a running job."""
    preempted: float | None
    reason: str

    @property
    def state(self) -> JobState:
        return parse_state(self.name)

    def being_ended(self, restart: int, since: float) -> JobState | None:
        """Return why SLURM is ending a job that still runs; None if it is not.

        `restart`: the job's restarts when it started; `since`: Unix time of its start. While processes are being
        stopped, SLURM prints COMPLETING instead of the state that follows.
        """
        if self.preempted is not None and self.preempted >= since:
            return JobState.PREEMPTED
        if self.restarts > restart:
            return JobState.REQUEUED
        if not self.state.alive:
            return self.state
        return _ENDINGS.get(self.reason, JobState.CANCELLED) if self.name == "COMPLETING" else None


class SlurmClient:
    """Runs SLURM's commands. Each method raises SlurmError if its command fails, SlurmTimeoutError without an answer.

    `environment`: that of the commands. Variables that SLURM sets within a job are removed, because sbatch would pass
    them on to the new job.
    """

    def __init__(self, environment: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> None:
        self._environment = without_job(environment)
        self._timeout_s = timeout_s

    def sbatch(self, arguments: Sequence[str]) -> str:
        return parse_job_id(self._run("sbatch", "--parsable", *arguments))

    def queue(self) -> list[QueuedJob]:
        """List the user's jobs. Jobs that SLURM no longer knows are omitted."""
        printed = self._of_job("squeue", "--noheader", "--states=all", "--format=%i|%T|%k", "--me")
        lines = printed.splitlines()
        # Later lines may be the rest of a comment with line breaks, but an unreadable list must not look like no jobs.
        if lines and not _QUEUED.match(lines[0]):
            raise SlurmError(f"squeue printed {plain_line(lines[0])!r}; expected lines of id|state|comment")
        rows = (line.split("|", 2) for line in lines if _QUEUED.match(line))
        return [QueuedJob(job_id, parse_state(state), comment) for job_id, state, comment in rows]

    def standing(self, job_id: str) -> Standing | None:
        columns = "--Format=State:24,RestartCnt:12,EndTime:24,PreemptTime:24,Reason:80"
        fields = self._of_job("squeue", "--noheader", "--states=all", columns, "--jobs", job_id).split(maxsplit=4)
        if len(fields) < 4:
            return None
        name, restarts, ended, preempted, *reason = fields
        count = int(restarts) if restarts.isdecimal() else 0
        return Standing(name, count, _timestamp(ended), _timestamp(preempted), "".join(reason).strip())

    def ending(self, job_id: str) -> JobState | None:
        standing = self.standing(job_id)
        return None if standing is None or standing.state.alive else standing.state

    def accounted(self, job_id: str) -> JobState | None:
        """Return the state in sacct's records; None if accounting is disabled or has no record of the job."""
        options = ("--noheader", "--parsable2", "--allocations", "--format=State%40")
        try:
            printed = self._run("sacct", *options, "--jobs", job_id)
        except (SlurmError, OperatorError):  # accounting is disabled on many clusters, and the command not installed
            return None
        states = [parse_state(line) for line in printed.splitlines() if line.strip()]
        return states[-1] if states else None

    def cancel(self, jobs: Sequence[str]) -> None:
        """Cancel jobs. Those that have ended already are no error."""
        if jobs:
            self._run("scancel", "--quiet", *jobs)

    def signal(self, step_id: str, signal_name: str) -> None:
        self._run("scancel", "--quiet", f"--signal={signal_name}", step_id)

    def steps(self, job_id: str) -> dict[str, str]:
        printed = self._run("squeue", "--noheader", "--steps", "--format=%i|%j", "--jobs", job_id)
        return {name: step for step, _, name in (row.partition("|") for row in printed.splitlines())}

    def hosts(self, nodes: str) -> list[str]:
        """Expand a list of nodes: `n[1-2]`."""
        return self._run("scontrol", "show", "hostnames", nodes).split()

    def node_address(self, node: str) -> str:
        """Return the host name or address by which SLURM itself reaches a node."""
        found = re.search(r"\bNodeAddr=(\S+)", self._run("scontrol", "show", "node", "--oneliner", node))
        return found[1] if found else node

    def _of_job(self, *command: str) -> str:
        try:
            return self._run(*command)
        except SlurmTimeoutError:
            raise
        except SlurmError as error:
            if "invalid job id" in str(error).lower():  # squeue fails if the only job that it is asked for is gone
                return ""
            raise

    def _run(self, *command: str) -> str:
        try:
            done = subprocess.run(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._timeout_s,
                check=False,
            )
        except FileNotFoundError:
            raise OperatorError(
                f"{command[0]} was not found; run this on a host with SLURM's client commands, such as a login node"
            ) from None
        except subprocess.TimeoutExpired:
            raise SlurmTimeoutError(
                f"{command[0]} did not answer within {self._timeout_s:g} s; "
                "`scontrol ping` shows whether SLURM's controller is up"
            ) from None
        if done.returncode == 0:
            return done.stdout
        stripped = (line.strip().removeprefix(f"{command[0]}: ") for line in done.stderr.splitlines())
        lines = [line.removeprefix("error: ") for line in stripped if line]
        problem = plain_line("; ".join(lines))[:_MESSAGE_CHARACTERS] or f"exit status {done.returncode}"
        if done.returncode < 0 or any(text in problem.lower() for text in _AMBIGUOUS):
            raise SlurmTimeoutError(f"{command[0]}: {problem}")
        raise SlurmError(f"{command[0]}: {problem}")


def _timestamp(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:  # N/A
        return None


def parse_job_id(printed: str) -> str:
    """Parse what `sbatch --parsable` prints: `123`, or `123;cluster`; a site's own sbatch may print the longer form.

    Raises SlurmTimeoutError for anything else, because the job may have been submitted.
    """
    for line in reversed(printed.split("\n")):  # a site's submit plug-in may print lines before it
        if match := _JOB_ID.fullmatch(line.strip()):
            return match[1]
    raise SlurmTimeoutError(f"sbatch printed {plain_line(printed.strip())!r}; expected the id of the submitted job")


def array_base(job_id: str) -> str:
    """Return the id of the job to which a task of an array belongs: 123 for `123_4` and `123_[0-3]`."""
    return job_id.partition("_")[0].partition("+")[0]


def without_job(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables of the job in which this process runs."""
    kept = ("SLURM_CONF", "SLURM_CLUSTERS")
    return {
        name: value
        for name, value in environment.items()
        if (name in kept or not name.startswith(("SLURM_", "SLURMD_", "PMI_", "PMIX_")))
        and name not in _NOT_INHERITED
        and name not in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "SRUN_DEBUG")
    }


_STATES = {
    **{state.value: state for state in JobState if state not in (JobState.REQUEUED, JobState.DRAINED)},
    **dict.fromkeys(
        ("CONFIGURING", "COMPLETING", "POWER_UP_NODE", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"),
        JobState.RUNNING,
    ),
    **dict.fromkeys(
        ("EXPEDITING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"), JobState.PENDING
    ),
    "LAUNCH_FAILED": JobState.FAILED,
    "RECONFIG_FAIL": JobState.FAILED,
}


def parse_state(text: str) -> JobState:
    """Parse a state as printed by squeue, sacct or scontrol: `RUNNING`, `CANCELLED by 1000`, `OUT_OF_ME+`.

    UNKNOWN for a name that this version does not know.
    """
    name = text.split(maxsplit=1)[0] if text.strip() else ""
    if name in _STATES:
        return _STATES[name]
    if name.endswith("+"):  # sacct shortens names to the width of its column
        matches = {state for full, state in _STATES.items() if full.startswith(name[:-1])}
        if len(matches) == 1:
            return matches.pop()
    return JobState.UNKNOWN
