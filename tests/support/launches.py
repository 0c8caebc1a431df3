"""Launches of evaluations without SLURM: a scheduler in memory, and a planner without checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollyard.launchers.slurm.client import SlurmClient
from rollyard.launchers.slurm.job import JobSpec, JobState, Submission, SubmittedJob, write_submission
from rollyard.launchers.slurm.launch import read_arguments
from rollyard.launchers.slurm.launch_planner import LaunchPlanner, Planned
from rollyard.launchers.slurm.launcher import SlurmLauncher
from rollyard.launchers.slurm.scheduler import JobAttempt, Scheduler
from rollyard.records.errors import OperatorError, RunError

CONFIG = """\
generation:
  model_name: null
  temperature: 0.0
  max_new_tokens: ${generation.vllm_cfg.max_model_len}
  vllm_cfg: {tensor_parallel_size: 1, max_model_len: 2048}
tokenizer: {name: "${generation.model_name}"}
eval: {num_tests_per_prompt: 1}
data: {dataset_name: openai/gsm8k}
cluster: {num_nodes: 1, gpus_per_node: 8}
"""
MODEL = "generation.model_name=tiny"


class MemoryScheduler(Scheduler):
    """Keeps jobs in memory; finds the job of a folder again."""

    def __init__(self, refuse_after: int | None = None) -> None:
        super().__init__(SlurmClient({}))
        self.specs: list[JobSpec] = []
        self.ids: dict[Path, str] = {}
        self.state: dict[str, JobState] = {}
        self.failures: dict[str, list[JobAttempt]] = {}
        self.refuse_after = refuse_after

    def submit(self, spec: JobSpec) -> str:
        if spec.folder in self.ids:
            return self._recorded(spec, self.ids[spec.folder])
        if self.refuse_after is not None and len(self.specs) >= self.refuse_after:
            raise RunError("sbatch: error: QOSMaxSubmitJobPerUserLimit")
        self.specs.append(spec)
        self.ids[spec.folder] = job_id = str(100 + len(self.specs))
        self.state[job_id] = JobState.PENDING
        return self._recorded(spec, job_id)

    def _recorded(self, spec: JobSpec, job_id: str) -> str:
        spec.folder.mkdir(parents=True, exist_ok=True)
        write_submission(spec.folder, Submission(chain="", name=spec.name, job_id=job_id, submitted=0.0))
        return job_id

    def states(self, jobs: Sequence[SubmittedJob]) -> dict[str, JobState]:
        return {job.job_id: self.state[job.job_id] for job in jobs}

    def attempts(self, job: SubmittedJob) -> list[JobAttempt]:
        return self.failures.get(job.job_id, [])

    def cancel(self, jobs: Sequence[SubmittedJob]) -> None:
        for job in jobs:
            self.state[job.job_id] = JobState.CANCELLED


class Checkpoints:
    """Knows one converted checkpoint at most."""

    def __init__(self, cache: Path, *, is_converted: bool = False) -> None:
        self.folder = cache / "step_170_0123456789abcdef"
        self.is_converted = is_converted
        self.tokens: list[str] = []

    def __call__(self, dcp: Path, config: Path, hf_path: Path | None, token: str) -> tuple[Path, bool]:
        if not dcp.exists():
            raise OperatorError(f"{dcp} does not exist")
        self.tokens.append(token)
        return hf_path or self.folder, self.is_converted and not token


class LaunchSite:
    def __init__(self, root: Path, scheduler: MemoryScheduler | None = None) -> None:
        self.root = root
        self.log = root / "log"
        self.scheduler = scheduler or MemoryScheduler()
        self.checkpoints = Checkpoints(root / "log" / "nemo-rl" / "hf_eval_checkpoints")
        self.printed: list[str] = []
        self.warnings: list[str] = []
        self.write("examples/configs/eval.yaml", CONFIG)
        self.planner = LaunchPlanner(self.checkpoints, root, ("ng_eval",), ("convert",))

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def environ(self) -> dict[str, str]:
        return {"LOG": str(self.log)}

    def plan(self, *arguments: str, launch_id: str = "one") -> Planned:
        options, overrides = read_arguments(arguments, self.environ())
        return self.planner.plan(options, overrides, arguments, launch_id, 1.0)

    @property
    def launcher(self) -> SlurmLauncher:
        return SlurmLauncher(self.planner, self.scheduler, self.printed.append, self.warnings.append)

    def launch(self, *arguments: str) -> int:
        options, overrides = read_arguments(arguments, self.environ())
        return self.launcher.launch(options, overrides, arguments)

    @property
    def folders(self) -> list[Path]:
        return sorted(path.parent for path in self.log.glob("nemo-rl/*/*/launch.json"))
