"""CollectionOptions: what the commands have in common that write a file of rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from rollyard.cli.options import SHARDED, Options
from rollyard.records.run_types import HeadServer
from rollyard.records.types import Parallel


class CollectionOptions(Options):
    RETIRED: ClassVar[Mapping[str, str]] = SHARDED

    output_jsonl_fpath: Path
    """Output file for the rollouts. The failures, manifest and status files are written next to it."""
    num_samples_in_parallel: Parallel = 32
    """Maximum number of concurrent episodes; auto: the number is found while collecting, and shown in the summary."""
    resume: bool = True
    """Resume the collection if its output already exists; if false, an existing output is an error. The input may then
    be some of its original rows."""
    overwrite: bool = False
    """Rename existing output files and start over."""
    accept_changed_code: bool = False
    """Continue even if the servers' code has changed since the output was started; _ng_code marks the new rows."""
    max_attempts: int = Field(default=3, ge=1)
    """Maximum number of attempts per rollout, each in a new session."""
    rollout_timeout_s: float = Field(default=3600.0, gt=0)
    """Timeout for one attempt, in seconds."""
    max_failure_rate: float = Field(default=0.5, ge=0, le=1)
    """Stop the collection if the fraction of abandoned rollouts exceeds this value."""
    max_partial_bytes: int = Field(default=128 * 1024, ge=0, le=16 * 1024 * 1024)
    """Maximum size, in bytes, of the conversation that X_failures.jsonl records for a failed attempt; 0: none."""
    shard: str | None = None
    """i/n, if n jobs collect the output together and this is number i, from 1 to n: it collects its share of what is
    missing, into a file beside the output. The last job to end merges the files; see ng_merge."""
    head: str | None = None
    """HOST:PORT of the head; default: a run started here or in a parent folder, else this user's on port 11000."""
    head_server: HeadServer | None = None
    """The same in NeMo Gym's form: --head-server.host ... --head-server.port ..."""
    token: str | None = None
    """Run token, if it is not stored in the run's folder; also read from the environment variable ROLLYARD_TOKEN."""
