"""TrainingPaths: the files of a training run, and the names of its versions of the weights."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from rollyard.records.errors import RunError


@dataclass(frozen=True, slots=True)
class TrainingPaths:
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


_VERSION = re.compile(r"step_(\d{6,})(?:[-.].*)?")


def version_of_step(step: int) -> str:
    """Return the name of the weights after `step` updates, which is also that of their checkpoint: step_000012."""
    return f"step_{step:06d}"


def updates_of(version: str | None) -> int:
    """Return the number of updates of a version, such as 12 for `step_000012` and `step_000012-r1`.

    Raises RunError if there is no version, or if it is not one of a training run: to count it as some version would let
    rollouts of any age pass.
    """
    if version is None:
        raise RunError(
            "the version of the weights that sampled a rollout is unknown, so that its age cannot be determined: set "
            "trainer_endpoints: true on the model server of the policy, and let agents call the policy through it"
        )
    if (found := _VERSION.fullmatch(version)) is None:
        raise RunError(
            f"a rollout was sampled with weights of version {version!r}; expected a version of this training run, such "
            f"as {version_of_step(0)!r}: publish the initial weights before the first step, or set policy_version: "
            f"{version_of_step(0)} on the model server of the policy"
        )
    return int(found[1])


class VersionNames:
    """Names versions. Those of two starts of a training differ, because a name is never used for two versions."""

    def __init__(self, folder: Path) -> None:
        """`folder`: where the versions are stored, also those of earlier starts."""
        again = folder.is_dir() and any(folder.iterdir())
        self._suffix = time.strftime("-r%Y%m%d%H%M%S") if again else ""

    def name(self, step: int) -> str:
        return f"{version_of_step(step)}{self._suffix}"
