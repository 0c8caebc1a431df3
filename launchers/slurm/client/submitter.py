"""Submits the jobs of chains, each exactly once, even if sbatch's answer is lost."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rollyard.launchers.slurm.client.slurm_client import (
    QueuedJob,
    SlurmClient,
    SlurmError,
    SlurmTimeoutError,
    array_base,
)
from rollyard.launchers.slurm.job_files import chain_comment, comment, sbatch_arguments
from rollyard.launchers.slurm.job_types import JobSpec

_LOOKUPS = 3
_PAUSE_S = 1.0


def submit_once(client: SlurmClient, spec: JobSpec, chain: str, position: int, dependencies: Sequence[str] = ()) -> str:
    """Submit the job at a position of a chain and return its id.

    If sbatch does not answer, the job may have been submitted: it is looked up by its comment before another attempt.
    Raises SlurmTimeoutError if SLURM does not answer the second time either, SlurmError if it refuses the job.
    """
    arguments = sbatch_arguments(spec, chain, position, dependencies)
    try:
        return client.sbatch(arguments)
    except SlurmTimeoutError as error:
        try:
            for _ in range(_LOOKUPS):
                if found := find_job(client, chain, position):
                    return found
                time.sleep(_PAUSE_S)
        except SlurmError as second:
            raise SlurmTimeoutError(
                f"{error}. Whether job {spec.name!r} was submitted is unknown, because {second}. Repeat the command "
                f"when SLURM answers: before it submits again, it looks for the comment {comment(chain, position)}"
            ) from error
    return client.sbatch(arguments)


def find_job(client: SlurmClient, chain: str, position: int) -> str | None:
    """Return the id of the job at a position of a chain, if squeue still lists it: waiting, running or just ended."""
    wanted = comment(chain, position)
    ids = [array_base(job.job_id) for job in client.queue() if job.comment == wanted]
    return min(ids, key=int, default=None)


def jobs_of(client: SlurmClient, chains: Sequence[str]) -> dict[str, list[QueuedJob]]:
    """Return the jobs of each chain that squeue lists, in the order of their ids."""
    listed = sorted(client.queue(), key=lambda job: int(array_base(job.job_id)))
    return {chain: [job for job in listed if job.comment.startswith(chain_comment(chain))] for chain in chains}
