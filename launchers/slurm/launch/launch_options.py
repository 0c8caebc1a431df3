"""LaunchOptions: what the command line asks for, with the variables of the environment already applied."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rollyard.records.types import Record

ContainerRuntime = Literal["none", "pyxis", "apptainer"]


class LaunchOptions(Record):
    """The flags of `ng_eval_launcher`."""

    config: str | None = None
    sweep: str | None = None
    dcp_ckpt_path: str | None = None
    dcp_config: str | None = None
    hf_ckpt_path: str | None = None
    skip_conversion: bool = False
    force_conversion: bool = False
    nodes: int | None = None
    gpus: int | None = None
    time: str = "2:0:0"
    account: str
    partition: str = "batch"
    container: str | None = None
    container_runtime: ContainerRuntime = "none"
    mounts: tuple[str, ...] = ()
    jobname: str = "eval"
    jobs: int = 1
    """Jobs for each combination, which share its rows."""
    max_retries: int = 3
    max_walltime_s: float | None = None
    drain_before_s: int = 120
    sbatch_args: tuple[str, ...] = ()
    dry: bool = False
    resume: bool = False
    launch_id: str | None = None
    log_root: Path
    """`$LOG/nemo-rl`: the folder of all launches and converted checkpoints."""
