"""What `ng_track` sends to an experiment tracker, Weights & Biases or MLflow: metrics over time, a sample of rollouts.

It follows a growing file and records how far it has come.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import orjson
from pydantic import Field, ValidationError

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.jsonl import Lines, iter_jsonl, replace, skip
from rollyard.records.optional import load
from rollyard.records.rewards import is_measured
from rollyard.records.rollout_file import RolloutPaths, is_running, read_status
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.scores import ClusteredMean, RunScores
from rollyard.records.types import MAX_REWARD, Json, Record, items, mapping

ROLLOUTS = "rollouts"
"""Name of the metric that counts rollouts with a reward. Its value is also the step at which metrics are logged."""
Cell = str | int | float | bool | None


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
    def __init__(self, project: str, name: str, config: Json, run_id: str) -> None:
        self._wandb = load("wandb", "wandb", "--to wandb")
        try:
            self._run = self._wandb.init(project=project, name=name, config=config, id=run_id, resume="allow")
        except self._wandb.Error as error:
            raise RunError(f"Weights & Biases could not start a run: {error}") from error

    @property
    def logged(self) -> int:
        """Number of rollouts already logged; 0 in offline mode, which knows nothing of earlier commands."""
        last = self._run.summary.get(ROLLOUTS)
        return int(last) if isinstance(last, int | float) else 0

    @property
    def place(self) -> str:
        return str(self._run.url or self._run.dir)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]], step: int) -> None:
        made = self._wandb.Table(columns=list(columns), data=[list(row) for row in rows], allow_mixed_types=True)
        # A separate name, because a later command resumes from the number stored as ROLLOUTS.
        self._run.log({"rollout_table": made}, step=step)

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


# Tracks runs in MLflow, which is configured by its own settings (MLFLOW_TRACKING_URI, ...).

TABLE = "rollouts.json"
TAG = "rollyard_run"
MAX_PARAM_LENGTH = 500
"""Maximum length of a parameter value in characters: the lowest limit of any MLflow store."""
PARAMS_PER_REQUEST = 100


class MlflowTracker:
    def __init__(self, project: str, name: str, config: Json, run_id: str) -> None:
        self._mlflow = load("mlflow", "mlflow", "--to mlflow")
        self._error_type: type[Exception] = self._mlflow.MlflowException
        try:
            experiment = self._mlflow.set_experiment(project)
            # MLflow assigns its own run ids, so Rollyard's id is a tag.
            tagged = f"tags.{TAG} = '{run_id}'"
            if runs := self._mlflow.MlflowClient().search_runs([experiment.experiment_id], tagged, max_results=1):
                self._run = self._mlflow.start_run(run_id=str(runs[0].info.run_id))
                return
            self._run = self._mlflow.start_run(run_name=name, tags={TAG: run_id})
            params = [(_key(key), str(value)[:MAX_PARAM_LENGTH]) for key, value in flat(config).items()]
            for start in range(0, len(params), PARAMS_PER_REQUEST):
                self._mlflow.log_params(dict(params[start : start + PARAMS_PER_REQUEST]))
        except self._error_type as error:
            raise RunError(f"MLflow could not start a run: {error}") from error

    @property
    def logged(self) -> int:
        """Number of rollouts already logged."""
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


Tracker = WandbTracker | MlflowTracker
"""A run in an experiment tracker. If a run with the given id exists, it is resumed."""


def _key(name: str) -> str:
    """Replace characters that MLflow does not allow in names."""
    return re.sub(r"[^\w\-. /]", "_", name)


class RolloutMetrics:
    """Means over the measured rollouts. They are those of ng_reward_profile."""

    def __init__(self) -> None:
        self.measured = 0
        self._scores = RunScores()
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: Counter[str] = Counter()
        self._ends: Counter[str] = Counter()

    def add(self, row: Json) -> bool:
        """Add a row; return False if it is not a measured rollout."""
        if not is_measured(row):
            return False
        self.measured += 1
        self._scores.add(cast(RolloutRow, row))
        timings = mapping(row.get("timings"))
        values = {
            "truncated/rate": row.get("truncated"),
            "tool_calls/mean": tool_calls(row),
            "turns/mean": timings.get("model_calls"),
            "output_tokens/mean": output_tokens(row),
            "episode_seconds/mean": timings.get("total_s"),
        }
        for name, value in values.items():
            # Anything but a finite number or a boolean counts as missing.
            if isinstance(value, int | float) and -MAX_REWARD <= value <= MAX_REWARD:
                self._sums[name] += value
                self._counts[name] += 1
        if isinstance(end := row.get("finish_reason"), str):
            self._ends[end] += 1
        return True

    def metrics(self, failures: Mapping[str, int], *, exact: bool = True) -> dict[str, float]:
        """Return all metrics by name. `failures`: attempts by kind. `exact`: see `RunScores.means`."""
        means = self._scores.means(exact=exact)
        return {
            ROLLOUTS: self.measured,
            **_named("", means.reward, means.success),
            **{
                name: value
                for dataset, (reward, success) in means.datasets.items()
                for name, value in _named(f"dataset/{dataset}/", reward, success).items()
            },
            **{name: self._sums[name] / count for name, count in self._counts.items()},
            **{f"end/{end}": count / self.measured for end, count in self._ends.most_common(20)},
            **{f"failed_attempts/{kind}": count for kind, count in failures.items()},
        }


def _named(prefix: str, reward: ClusteredMean | None, success: ClusteredMean | None) -> dict[str, float]:
    """Return the mean reward with its standard error, and the success rate with its interval, clustered by task."""
    found: dict[str, float] = {}
    if reward is not None:
        found[f"{prefix}reward/mean"] = reward.value
        if reward.stderr is not None:
            found[f"{prefix}reward/stderr"] = reward.stderr
    if success is not None:
        found[f"{prefix}success/rate"] = success.value
        if (interval := success.share_interval) is not None:
            found[f"{prefix}success/low"], found[f"{prefix}success/high"] = interval
    return found


def tool_calls(row: Json) -> int:
    output = items(mapping(row.get("response")).get("output"))
    return sum(mapping(item).get("type") == "function_call" for item in output)


def output_tokens(row: Json) -> Any:
    """Return the number of output tokens in the entire episode, if the endpoint reported it."""
    return mapping(mapping(row.get("response")).get("usage")).get("output_tokens")


COLUMNS = ("task", "repeat", "reward", "success", "end", "tool_calls", "output_tokens", "conversation")
MAX_LENGTH = 20_000
"""Maximum length of a conversation in characters."""


class RolloutSample:
    """Draws `size` rows from those offered (Vitter's algorithm R). The same file always gives the same sample."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._seen = 0
        self._kept: list[tuple[Cell, ...]] = []
        self._random = random.Random(0)

    def offer(self, row: Json) -> None:
        self._seen += 1
        if len(self._kept) < self._size:
            self._kept.append(_cells(row))
        elif (index := self._random.randrange(self._seen)) < self._size:
            self._kept[index] = _cells(row)

    @property
    def rows(self) -> list[tuple[Cell, ...]]:
        """The sampled rows, sorted by task and repeat, with one cell per column."""
        return sorted(self._kept, key=lambda cells: (cells[0] is None, cells[0] or 0, cells[1] or 0))


def conversation(row: Json) -> str:
    """Return the episode's conversation as text: messages with their roles, calls with their arguments, and results."""
    start = mapping(row.get("responses_create_params")).get("input")
    before = [{"role": "user", "content": start}] if isinstance(start, str) else items(start)
    text = "\n\n".join(filter(None, map(_item_text, [*before, *items(mapping(row.get("response")).get("output"))])))
    return text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}\n... ({len(text) - MAX_LENGTH} more characters)"


def _cells(row: Json) -> tuple[Cell, ...]:
    success, end = row.get("success"), row.get("finish_reason")
    return (
        _integer(row.get("_ng_task_index")),
        _integer(row.get("_ng_rollout_index")),
        float(row["reward"]),
        success if isinstance(success, bool) else None,
        end if isinstance(end, str) else None,
        tool_calls(row),
        _integer(output_tokens(row)),
        conversation(row),
    )


def _item_text(item: Any) -> str:
    if not isinstance(item, dict):
        return ""
    kind = item.get("type")
    if kind == "function_call":
        return f"call: {item.get('name')}({_text(item.get('arguments'))})"
    if kind == "function_call_output":
        return f"result: {_text(item.get('output'))}"
    if kind == "reasoning":
        return f"reasoning: {_text(item.get('content') or item.get('summary'))}"
    return f"{item.get('role', kind)}: {_text(item.get('content'))}"


def _text(content: Any) -> str:
    """Return the text of a message's content. Content of any other type is returned as JSON."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(mapping(part).get("text"), str) for part in content):
        return "\n".join(part["text"] for part in content)
    return orjson.dumps(content).decode()


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


POLL_S = 1.0
SILENT_S = 10.0
"""A `running` status that is older than this is left over from a collection that was killed."""


def rows(output: Path, *, follow: bool) -> Iterator[Json | None]:
    """Yield every complete row of the file.

    With `follow`, keep reading until the collection ends, and yield None before each pause of POLL_S. Invalid lines are
    skipped. Raises OperatorError if the file cannot be read.
    """
    try:
        file = output.open("rb")
    except OSError as error:
        raise OperatorError(f"rollout file {str(output)!r} cannot be read: {error.strerror}") from error
    with file:
        end = 0
        while True:
            # Checked before reading, so that rows written until the end are read.
            more = follow and is_running(read_status(output), SILENT_S)
            lines = Lines(file, end, whole=True)
            # Rows are sent to a tracker, so they must be serializable by orjson.
            for line in iter_jsonl(lines, skip, parse=orjson.loads):
                yield line.value
            end = max(end, lines.end)
            if not more:
                return
            yield None
            time.sleep(POLL_S)


class Tracked(Record):
    rollouts: dict[str, int] = Field(default_factory=dict)
    """Maps tracker and run id, such as `wandb/0123456789abcdef`, to the number of rollouts logged."""


class ProgressFile:
    """Stores the progress of trackers that cannot be queried, such as Weights & Biases offline."""

    def __init__(self, output: Path, tracker: str, run_id: str) -> None:
        self.path = RolloutPaths(output).sidecar("tracked.json")
        self._key = f"{tracker}/{run_id}"

    @property
    def logged(self) -> int:
        """Number of rollouts logged by earlier commands; 0 if unknown."""
        return self._read().rollouts.get(self._key, 0)

    def write(self, rollouts: int) -> None:
        """Store the progress. Does nothing if the folder is not writable."""
        known = self._read().rollouts
        with contextlib.suppress(RunError):
            replace(self.path, orjson.dumps({"rollouts": {**known, self._key: rollouts}}) + b"\n", synced=False)

    def _read(self) -> Tracked:
        try:
            return Tracked.model_validate_json(self.path.read_bytes())
        except (OSError, ValidationError):
            return Tracked()
