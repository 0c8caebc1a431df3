"""Command lines that run a program on the node, in a Pyxis container, or in an Apptainer container."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from rollyard.launchers.slurm.job_types import JobSpec
from rollyard.records.errors import OperatorError, RunError

RUNTIMES = ("none", "pyxis", "apptainer")
STEP_NAME = "rollyard-command"
_HELP_S = 60.0


def check_container(spec: JobSpec) -> None:
    """Raise OperatorError unless container, runtime and mounts fit together."""
    if spec.container_runtime not in RUNTIMES:
        raise OperatorError(f"container_runtime={spec.container_runtime}: expected one of {', '.join(RUNTIMES)}")
    if spec.container_runtime != "none" and not spec.container:
        raise OperatorError(f"container_runtime={spec.container_runtime} needs an image: set container")
    if spec.container_runtime == "pyxis" and (wrong := [mount for mount in spec.mounts if "," in mount]):
        raise OperatorError(f"mount {wrong[0]!r}: Pyxis separates mounts with commas, so a path cannot contain one")


def in_container(spec: JobSpec, node: str, cpus: int | None, command: Sequence[str]) -> list[str]:
    """Return the command line that runs `command` on this node, in the job's container if it has one."""
    if spec.container_runtime == "pyxis":
        return on_node(spec, node, cpus, command, f"--job-name={STEP_NAME}")
    if spec.container_runtime == "apptainer":
        return [*_apptainer(spec), *command]
    return list(command)


def on_node(spec: JobSpec, node: str, cpus: int | None, command: Sequence[str], *options: str) -> list[str]:
    """Return the command line that runs `command` as a job step on one node of the job, in its container.

    `cpus`: the job's CPUs on that node. Without them, srun gives the step a single one.
    """
    step = ["srun", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--overlap", "--kill-on-bad-exit=1", *options]
    if cpus is not None:
        step.append(f"--cpus-per-task={cpus}")
    if spec.gpus_per_node:
        step.append(f"--gres=gpu:{spec.gpus_per_node}")
    if spec.container_runtime == "pyxis":
        return [*step, *_pyxis(spec), *command]
    if spec.container_runtime == "apptainer":
        return [*step, *_apptainer(spec), *command]
    return [*step, *command]


def check_runtime(spec: JobSpec) -> None:
    """Raise RunError if this node lacks the program that runs the container."""
    program = {"pyxis": "srun", "apptainer": "apptainer"}.get(spec.container_runtime)
    if program is not None and shutil.which(program) is None:
        raise RunError(
            f"container_runtime={spec.container_runtime}: this node has no {program} in its PATH; "
            "choose a partition whose nodes have it, or set container_runtime=none"
        )
    if spec.container_runtime == "pyxis":
        shown = subprocess.run(["srun", "--help"], capture_output=True, text=True, check=False, timeout=_HELP_S)
        if "--container-image" not in shown.stdout + shown.stderr:
            raise RunError(
                "container_runtime=pyxis: srun on this node has no option --container-image, because the Pyxis plug-in "
                "is not installed; install it, or use container_runtime=apptainer or none"
            )


def _pyxis(spec: JobSpec) -> list[str]:
    options = [f"--container-image={spec.container}"]
    if spec.mounts:
        options.append(f"--container-mounts={','.join(spec.mounts)}")
    return options


def _apptainer(spec: JobSpec) -> list[str]:
    binds = [part for mount in spec.mounts for part in ("--bind", mount)]
    return ["apptainer", "exec", *(["--nv"] if spec.gpus_per_node else []), *binds, str(spec.container)]
