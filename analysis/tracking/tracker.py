"""Experiment trackers: the interface, Weights & Biases, and MLflow. Each imports its package when it is created."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

import orjson

from rollyard.records.errors import RunError
from rollyard.records.optional import load
from rollyard.records.types import Json

ROLLOUTS = "rollouts"
"""Name of the metric that counts rollouts with a reward. Its value is also the step at which metrics are logged."""
Cell = str | int | float | bool | None


class Tracker(Protocol):
    """A run in an experiment tracker. If a run with the given id exists, it is resumed."""

    @property
    def logged(self) -> int:
        """Number of rollouts already logged; 0 for a new run, or if the tracker cannot be queried."""
        ...

    @property
    def place(self) -> str:
        """Where the user can find the run, such as its URL."""
        ...

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the metrics as of `step` measured rollouts."""
        ...

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]], step: int) -> None:
        """Log a table of sampled rollouts when all rollouts have been logged."""
        ...

    def close(self, *, failed: bool) -> None:
        """End the run and mark it as failed or finished."""
        ...


def flat(tree: Json, prefix: str = "") -> dict[str, Cell]:
    """Flatten nested objects, so that `{"a": {"b": 1}}` becomes `{"a.b": 1}`. Lists become strings."""
    found: dict[str, Cell] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            plain = value is None or isinstance(value, str | int | float | bool)
            found[f"{prefix}{key}"] = value if plain else str(value)
    return found


# Tracks runs in Weights & Biases, which is configured by its own settings (`wandb login`, WANDB_MODE=offline, ...).


class WandbTracker:
    """A run in a Weights & Biases project."""

    def __init__(self, project: str, name: str, config: Json, run_id: str) -> None:
        self._wandb = load("wandb", "wandb", "--to wandb")
        try:
            self._run = self._wandb.init(project=project, name=name, config=config, id=run_id, resume="allow")
        except self._wandb.Error as error:
            raise RunError(f"Weights & Biases could not start a run: {error}") from error

    @property
    def logged(self) -> int:
        """Number of rollouts already logged; 0 in offline mode, where the summary of an earlier command is not
        available.
        """
        last = self._run.summary.get(ROLLOUTS)
        return int(last) if isinstance(last, int | float) else 0

    @property
    def place(self) -> str:
        return str(self._run.url or self._run.dir)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]], step: int) -> None:
        rollout_table = self._wandb.Table(
            columns=list(columns), data=[list(row) for row in rows], allow_mixed_types=True
        )
        # A separate name, because a later command resumes from the number stored as ROLLOUTS.
        self._run.log({"rollout_table": rollout_table}, step=step)

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


# Tracks runs in MLflow, which is configured by its own settings (MLFLOW_TRACKING_URI, ...).

TABLE = "rollouts.json"
TAG = "rollyard_run"
MAX_PARAM_LENGTH = 500
"""Maximum length of a parameter value in characters: the lowest limit of any MLflow store."""
PARAMS_PER_REQUEST = 100


class MlflowTracker:
    """A run in an MLflow experiment."""

    def __init__(self, project: str, name: str, config: Json, run_id: str) -> None:
        self._mlflow = load("mlflow", "mlflow", "--to mlflow")
        self._error_type: type[Exception] = self._mlflow.MlflowException
        try:
            experiment = self._mlflow.set_experiment(project)
            if (found := self._found(experiment.experiment_id, run_id)) is not None:
                self._run = self._mlflow.start_run(run_id=found)
                return
            # MLflow assigns its own run ids, so Rollyard's id is a tag.
            self._run = self._mlflow.start_run(run_name=name, tags={TAG: run_id})
            params = [(_key(key), str(value)[:MAX_PARAM_LENGTH]) for key, value in flat(config).items()]
            for start in range(0, len(params), PARAMS_PER_REQUEST):
                self._mlflow.log_params(dict(params[start : start + PARAMS_PER_REQUEST]))
        except self._error_type as error:
            raise RunError(f"MLflow could not start a run: {error}") from error

    def _found(self, experiment: str, run_id: str) -> str | None:
        """Return the id of the MLflow run that is tagged with Rollyard's run id, if there is one."""
        runs = self._mlflow.MlflowClient().search_runs([experiment], f"tags.{TAG} = '{run_id}'", max_results=1)
        return str(runs[0].info.run_id) if runs else None

    @property
    def logged(self) -> int:
        return int(self._run.data.metrics.get(ROLLOUTS, 0))

    @property
    def place(self) -> str:
        info = self._run.info
        return f"{self._mlflow.get_tracking_uri()}, experiment {info.experiment_id}, run {info.run_id}"

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        try:
            self._mlflow.log_metrics({_key(name): value for name, value in metrics.items()}, step=step)
        except self._error_type as error:
            raise RunError(f"MLflow rejected the metrics: {error}") from error

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]], step: int) -> None:
        # The format of mlflow.log_table, which would import pandas. The UI shows the file as a table.
        text = orjson.dumps({"columns": list(columns), "data": [list(row) for row in rows]}).decode()
        try:
            self._mlflow.log_text(text, TABLE)
            self._mlflow.set_tag("mlflow.loggedArtifacts", f'[{{"path": "{TABLE}", "type": "table"}}]')
        except self._error_type as error:
            raise RunError(f"MLflow rejected the table of rollouts: {error}") from error

    def close(self, *, failed: bool) -> None:
        self._mlflow.end_run("FAILED" if failed else "FINISHED")


def _key(name: str) -> str:
    """Replace characters that MLflow does not allow in names."""
    return re.sub(r"[^\w\-. /]", "_", name)
