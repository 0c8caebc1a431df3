"""What a launch prints: a header, and one block for each job in the format of the original launcher."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rollyard.launchers.slurm.launch.launch_planner import Planned
from rollyard.launchers.slurm.launch.launch_records import Launch, PlannedJob
from rollyard.launchers.slurm.launch.submitter import Outcome
from rollyard.launchers.slurm.launch.yaml_values import read_value
from rollyard.launchers.slurm.scheduler import SubmissionPreview

LINE = "=" * 80


def header(planned: Planned, dry: bool) -> Iterator[str]:
    """Yield the lines before the first job."""
    launch = planned.launch
    if launch.conversion is not None:
        yield "=== DCP to HF Conversion Setup ==="
        yield f"DCP checkpoint: {launch.conversion.dcp_ckpt_path}"
        yield f"HF checkpoint: {launch.conversion.hf_ckpt_path}"
        yield ""
    yield f"=== {'DRY RUN' if dry else 'SUBMITTING'} - Evaluation Experiments ==="
    yield f"Config: {launch.config}"
    if launch.conversion is None:
        models = " ".join(sorted({str(model) for model in _swept_models(launch)})) or launch.model
        yield f"Model: {models}"
    else:
        yield f"Model: Will be converted from DCP checkpoint to {launch.conversion.hf_ckpt_path}"
    if planned.cached:
        yield f"Found cached HF checkpoint at: {launch.model}"
        yield "Using cached checkpoint, skipping conversion"
    yield f"Nodes: {launch.nodes}"
    yield f"GPUs per node: {launch.gpus}"
    yield f"Launch: {launch.folder}"


def block(launch: Launch, job: PlannedJob, after: Iterator[str] | list[str]) -> Iterator[str]:
    """Yield the block of one job. `after` are the lines below its command."""
    yield ""
    yield f"[{title(launch, job)}]"
    parameters = _parameters(launch, job)
    if parameters:
        yield "Parameters:"
        yield from (f"  {key}: {shown_value(value)}" for key, value in parameters.items())
    yield "Command:"
    yield f"  {shlex.join(job.spec.command)}"
    yield from after
    yield LINE


def outcome_line(outcome: Outcome) -> str:
    """Return the line that tells what became of the job."""
    if outcome.job_id is None:
        return f"Not submitted: {outcome.problem}"
    return f"Submitted batch job {outcome.job_id}"


def preview_lines(preview: SubmissionPreview, files: Mapping[Path, str]) -> Iterator[str]:
    """Yield the command of the submission and the files that it needs."""
    yield "--- Command that will be executed ---"
    yield shlex.join(preview.argv)
    yield "--- End of command ---"
    for path, text in {**files, **preview.files}.items():
        yield f"--- File {path} ---"
        yield text.rstrip("\n")
        yield "--- End of file ---"


def title(launch: Launch, job: PlannedJob) -> str:
    """Return the job's name without the launch id: `eval_sweep_3`, or `eval_sweep_3 job-2`."""
    if job.combination is None:
        return f"{launch.jobname}_convert"
    several = len(launch.jobs_of(job.combination)) > 1
    return f"{job.combination} {job.spec.folder.name}" if several else job.combination


def shown_value(value: Any) -> str:
    """Format a value on one line: a string as it is if it would be read as the same string, anything else as JSON."""
    if isinstance(value, str) and value.isprintable() and value == value.strip() and _reads_as_itself(value):
        return value
    return json.dumps(value, ensure_ascii=False)


def _reads_as_itself(text: str) -> bool:
    try:
        return bool(text) and read_value(text) == text
    except ValueError:
        return False


def _parameters(launch: Launch, job: PlannedJob) -> Mapping[str, Any]:
    combination = launch.combination(job.combination)
    return {} if combination is None else combination.parameters


def _swept_models(launch: Launch) -> Iterator[Any]:
    for combination in launch.combinations:
        for key in ("generation.model_name", "model"):
            if key in combination.parameters:
                yield combination.parameters[key]
