"""Launch: everything that one call of `ng_eval_launcher` submits, as stored in `launch.json`."""

from __future__ import annotations

from pathlib import Path

from rollyard.launchers.slurm.job_types import JobSpec
from rollyard.launchers.slurm.launch.model_choice import Conversion
from rollyard.records.types import Json, Record


class Combination(Record):
    """One evaluation of the launch."""

    name: str
    """`eval`, or `eval_sweep_3`."""
    folder: Path
    parameters: Json
    """The keys that the sweep, the command line and the launcher set, without secrets."""
    swept: tuple[str, ...] = ()
    """The parameters that differ between combinations."""

    @property
    def config(self) -> Path:
        """The config that the jobs run."""
        return self.folder / "eval.yaml"

    @property
    def run(self) -> Path:
        """Output folder of the evaluation, shared by the combination's jobs."""
        return self.folder / "run"


class PlannedJob(Record):
    spec: JobSpec
    combination: str | None
    """None for the conversion."""
    after: tuple[str, ...] = ()
    """Names of planned jobs that must succeed first. Their ids are known when they have been submitted."""


class Launch(Record):
    """A launch. Its id makes the names of its jobs unique."""

    launch_id: str
    jobname: str
    folder: Path
    created: float
    """Unix time."""
    content: str
    """Hash of what is evaluated. Only a launch with the same content can be resumed."""
    command_line: tuple[str, ...]
    """Arguments of `ng_eval_launcher`, without secrets."""
    config: Path
    nodes: int
    gpus: int
    """GPUs per node. If combinations differ, those of the first."""
    model: str
    """The model of the first combination."""
    conversion: Conversion | None
    combinations: tuple[Combination, ...]
    jobs_per_combination: int
    jobs: tuple[PlannedJob, ...]
    """In the order of submission."""

    def jobs_of(self, combination: str | None) -> list[PlannedJob]:
        return [job for job in self.jobs if job.combination == combination]

    def combination(self, name: str | None) -> Combination | None:
        return next((one for one in self.combinations if one.name == name), None)
