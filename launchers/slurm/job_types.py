"""Records of SLURM jobs: what to submit, what was submitted, and how a job ended."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from pydantic import Field

from rollyard.records.types import Record


class JobSpec(Record):
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
    time: str = "2:0:0"
    """Time limit of one job, as for `sbatch --time`."""
    account: str | None = None
    partition: str | None = "batch"
    container: str | None = None
    """Image of Pyxis or Apptainer; None: the job runs directly on the node."""
    container_runtime: str = "none"
    """`none`, `pyxis` or `apptainer`."""
    mounts: tuple[str, ...] = ()
    sbatch_args: tuple[str, ...] = ()
    """More arguments of `sbatch`, each passed unchanged: `--qos=high`."""
    after_ok: tuple[str, ...] = ()
    """Ids of jobs that must succeed first."""
    chain: bool = True
    """Whether each job queues a successor that continues its work. False for a single job that other jobs wait for."""
    max_retries: int = Field(default=3, ge=0)
    """How many jobs of the chain may fail before it ends. Time limits, preemption and lost nodes do not count."""
    max_walltime_s: float | None = Field(default=None, gt=0)
    """Maximum running time of all jobs of the chain together."""
    max_jobs: int = Field(default=100, ge=1)
    """How many times the command may be started, so that a chain ends even if every job reaches its time limit."""
    drain_before_s: int = Field(default=120, ge=0, le=65535)
    """SLURM sends SIGUSR1 this long before the time limit; the collector then finishes its episodes."""
    ray_address_argument: str | None = None
    """With several nodes: the address of their Ray cluster is appended to this text, and the result to the command:
    `+ray_head_node_address=`."""


class SubmittedJob(Record):
    """One line of the submission manifest, written before the next job is submitted."""

    name: str
    job_id: str
    """The id from `sbatch --parsable`, without the cluster's name."""
    folder: Path
    submitted: float
    """Unix time."""


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
    """The node did not start."""
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
        """True if the job is waiting or running."""
        return self in (JobState.PENDING, JobState.RUNNING)

    @property
    def counts(self) -> bool:
        """True if such an end counts against `JobSpec.max_retries`."""
        return not self.alive and self not in _NOT_COUNTED


_NOT_COUNTED = (
    JobState.COMPLETED,
    JobState.CANCELLED,
    JobState.TIMEOUT,
    JobState.PREEMPTED,
    JobState.NODE_FAIL,
    JobState.REQUEUED,
    JobState.DRAINED,
)
