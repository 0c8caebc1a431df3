"""TrainingPaths: the files of a training run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rollyard.training.versions import version_of_step


@dataclass(frozen=True, slots=True)
class TrainingPaths:
    """Paths in the folder of a training run, `output_dir`."""

    root: Path

    @property
    def config(self) -> Path:
        """The settings of the run, complete with defaults."""
        return self.root / "config.yaml"

    @property
    def run_record(self) -> Path:
        """`run.json`: name, time, host, command line and git commit."""
        return self.root / "run.json"

    @property
    def patches(self) -> Path:
        """What git does not have committed: status, differences, names of untracked files."""
        return self.root / "patches"

    @property
    def metrics(self) -> Path:
        """One JSON line per step."""
        return self.root / "metrics.jsonl"

    @property
    def traces(self) -> Path:
        """Folder of trace.jsonl (time of each stage) and samples.jsonl (what became of each task)."""
        return self.root / "traces"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints from which training resumes; `latest.json` names the newest complete one."""
        return self.root / "checkpoints"

    @property
    def weights(self) -> Path:
        """Folder of the weights that the engines load, one folder per version."""
        return self.root / "weights"

    @property
    def logs(self) -> Path:
        """Folder of the logs of the servers and of vLLM."""
        return self.root / "logs"

    def token_pairs(self, step: int) -> Path:
        """Log-probabilities of engine and trainer for some tokens of a step."""
        return self.root / "token_pairs" / f"{version_of_step(step)}.json"

    def rollouts(self, step: int) -> Path:
        """Rollouts of a step, with the files that every collection has beside them."""
        return self.root / "rollouts" / f"{version_of_step(step)}.jsonl"

    def evaluation(self, step: int) -> Path:
        """Rollouts of the evaluation after `step` updates."""
        return self.root / "evaluations" / f"{version_of_step(step)}.jsonl"
