"""Record types of the files in `X_shared`. They are frozen and reject unknown fields."""

from __future__ import annotations

from pydantic import Field

from rollyard.records.rollouts.manifest_records import Manifest
from rollyard.records.types import Record


class SharedManifest(Record):
    """`manifest.json`: what all workers of an output must agree on."""

    collection: Manifest
    block: int = Field(ge=1)
    """Number of consecutive rollouts that a worker leases at once."""


class Owner(Record):
    """The process that works under a token."""

    worker: str
    """Name given by the user, as in `--worker a`."""
    token: str
    """The worker's name and random digits: unique for each process."""
    host: str
    pid: int
    started: int
    """When the process started, in clock ticks since the host's boot. With `pid`, it identifies the process."""
    machine: str
    """Identifies the boot and the PID namespace in which `pid` is valid; empty if unknown."""
    job: str = ""
    """Id of the batch job, such as SLURM's."""


class Lease(Record):
    """A lease on a block. Its file is created once and never changed: the next lease has the next generation."""

    block: int
    generation: int
    owner: Owner


class Heartbeat(Record):
    """The file that a worker renews while it is alive. A worker owns its leases until this file stops changing."""

    owner: Owner
    lease_s: float
    """The leases expire when the file has not changed for this many seconds."""
    beat: int
    ended: bool = False
    """The worker has exited and needs none of its leases anymore."""
    released: list[tuple[int, int]] = Field(default_factory=list)
    """(block, generation) of leases that the worker has given up before they were done."""


class MergeResult(Record):
    """`merged.json`: what the merge of a round wrote to the output."""

    expected: int
    measured: int
    refused: int
    """Number of missing rollouts whose tasks the environment rejected (`bad_task`)."""
    superseded: int
    """Number of rollouts that two workers measured; one of each is in `superseded.jsonl`."""
    shards: int
    """Number of shards, one for each process that took part."""
    merged_by: Owner | None
    output_bytes: int = 0
    """Size of the merged output."""
    shard_sizes: dict[str, tuple[int, int]] = Field(default_factory=dict)
    """Token -> sizes of the rollouts and failures of a shard when it was merged."""
