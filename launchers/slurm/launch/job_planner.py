"""JobPlanner: the SLURM jobs of a launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollyard.launchers.slurm.job_types import JobSpec
from rollyard.launchers.slurm.launch.launch_options import LaunchOptions
from rollyard.launchers.slurm.launch.launch_records import Combination, PlannedJob
from rollyard.launchers.slurm.launch.model_choice import Conversion
from rollyard.launchers.slurm.launch.resources import Resources


@dataclass(frozen=True)
class JobPlanner:
    options: LaunchOptions
    launch_id: str
    """Part of every job's name, so that no job waits for one of another launch."""
    folder: Path
    here: Path
    """Working directory of the jobs: relative paths in a config refer to the folder of the launch's call."""

    def conversion(self, conversion: Conversion | None, command: Sequence[str]) -> list[PlannedJob]:
        """Return the job that converts the checkpoint, which needs no GPU; none if there is nothing to convert."""
        if conversion is None:
            return []
        flags = {
            "--dcp-ckpt-path": str(conversion.dcp_ckpt_path),
            "--dcp-config": str(conversion.dcp_config),
            "--hf-ckpt-path": str(conversion.requested_path or ""),
            "--force-token": conversion.force_token,
        }
        arguments = [word for flag, value in flags.items() if value for word in (flag, value)]
        name = f"{self.options.jobname}_convert-{self.launch_id}"
        spec = self._spec(Resources(nodes=1, gpus=0), name, self.folder / "conversion", [*command, *arguments])
        # The evaluations wait for the end of this very job, so that no successor may replace it.
        return [PlannedJob(spec=spec.model_copy(update={"chain": False}), combination=None)]

    def evaluations(
        self, combination: Combination, resources: Resources, command: Sequence[str], after: Sequence[PlannedJob]
    ) -> list[PlannedJob]:
        """Return the jobs that share the rows of a combination."""
        return [
            PlannedJob(
                spec=self._spec(
                    resources,
                    f"{combination.name}-{self.launch_id}-{worker}",
                    combination.folder / worker,
                    # A worker even if it is the only job: others may join it later.
                    [*command, str(combination.config), f"worker={worker}"],
                ),
                combination=combination.name,
                after=tuple(job.spec.name for job in after),
            )
            for worker in (f"job-{number}" for number in range(1, self.options.jobs + 1))
        ]

    def _spec(self, resources: Resources, name: str, folder: Path, command: Sequence[str]) -> JobSpec:
        options = self.options
        return JobSpec(
            name=name,
            folder=folder,
            command=tuple(command),
            environment={
                "GPUS_PER_NODE": str(resources.gpus),
                "NUM_ACTOR_NODES": str(resources.nodes),
                # The conversion's cache is in LOG.
                "LOG": str(options.log_root.parent),
            },
            working_directory=self.here,
            nodes=resources.nodes,
            gpus_per_node=resources.gpus,
            time=options.time,
            account=options.account,
            partition=options.partition,
            container=options.container,
            container_runtime=options.container_runtime,
            mounts=options.mounts,
            sbatch_args=options.sbatch_args,
            max_retries=options.max_retries,
            max_walltime_s=options.max_walltime_s,
            drain_before_s=options.drain_before_s,
            ray_address_argument="ray_head_node_address=" if resources.nodes > 1 else None,
        )
