"""EvalFolder: the names of the files in an evaluation's folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rollyard.records.io.rollout_paths import RolloutPaths


@dataclass(frozen=True)
class EvalFolder:
    """Paths of the files that an evaluation writes."""

    root: Path
    worker: str | None = None
    """Name of this job, if several jobs collect into the folder."""

    @property
    def own(self) -> Path:
        """The folder for the logs and the state of this job."""
        return self.root if self.worker is None else self.root / "workers" / self.worker

    @property
    def rollouts(self) -> RolloutPaths:
        return RolloutPaths(self.root / "rollouts.jsonl")

    @property
    def report(self) -> Path:
        """The report in Markdown; the same report is next to it as .html and .json."""
        return self.root / "reward_analysis.md"

    @property
    def logs(self) -> Path:
        return self.own / "logs"

    @property
    def vllm_log(self) -> Path:
        return self.logs / "vllm_server.log"

    @property
    def servers_log(self) -> Path:
        return self.logs / "nemo_gym_servers.log"

    @property
    def collection_log(self) -> Path:
        return self.logs / "rollout_collection.log"

    @property
    def report_log(self) -> Path:
        return self.logs / "reward_analysis.log"

    @property
    def ray_log(self) -> Path:
        return self.logs / "ray_head.log"

    @property
    def own_log(self) -> Path:
        """Output of `ng_eval --detach`."""
        return self.logs / "ng_eval.log"

    @property
    def lock(self) -> Path:
        """Locked by the process that runs the evaluation, or this job's share of it."""
        return self.own / ".ng_eval.lock"

    @property
    def control(self) -> Path:
        """Address and token of the control server, readable only by the user."""
        return self.own / ".ng_eval_control.json"

    @property
    def identity(self) -> Path:
        """The model of the rollouts and how it was served, which must not change when the evaluation is resumed."""
        return self.root / "eval_identity.json"

    @property
    def config(self) -> Path:
        """The complete config of the evaluation, without secrets."""
        return self.root / "eval_config.yaml"

    @property
    def state(self) -> Path:
        """State of the evaluation, atomically replaced at every change; `ng_eval status` reads it."""
        return self.own / "eval_state.json"
