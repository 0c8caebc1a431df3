"""EvalPlan: what an evaluation will run, after its config has been resolved and before anything is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.eval_folder import EvalFolder
from rollyard.launchers.evaluation.pipeline.model_source import ModelSource
from rollyard.records.errors import OperatorError
from rollyard.records.rollouts.rewards import is_masked_line
from rollyard.records.rollouts.status_file import read_status
from rollyard.records.types import Json
from rollyard.services.config.run_config import RunConfig, ServerSpec
from rollyard.services.datasets.tasks import TaskFile, Tasks
from rollyard.services.rollouts.task_subset import subset_of_original


@dataclass(frozen=True)
class EvalPlan:
    """A checked evaluation."""

    config: EvalConfig
    folder: EvalFolder
    source: ModelSource
    here: Path
    """The working directory, in which the servers and the collection run."""
    config_paths: tuple[str, ...]
    run_config: RunConfig | None
    """The servers to start; None if a running stack is used."""
    agent: str | None
    input_jsonl_fpath: str | None
    data: str | dict[str, Any] | None
    tasks: Tasks
    identity: Json
    """What must not change when the evaluation is resumed, in addition to the collection's own identity."""
    vllm_command: tuple[str, ...] = ()
    ray_command: tuple[str, ...] = ()
    """Program that starts a Ray cluster; empty if none is started."""
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def expected(self) -> int:
        """Number of rollouts."""
        return self.tasks.count * self.config.num_repeats

    @property
    def model_title(self) -> str:
        """The model's name in messages and in the report."""
        if self.source.name:
            return self.source.name
        return "the model of the configs" if self.source.kind == "configs" else "the model of the running stack"

    def is_complete(self) -> bool:
        """Return whether the folder already holds every rollout, so that nothing needs to be started.

        The checks have compared the identity of the collection. The report verifies the rows.
        """
        status = read_status(self.folder.rollouts.output)
        finished = status is not None and status.state == "complete" and status.measured == self.expected
        return finished and self.existing() == self.expected

    def existing(self) -> int:
        """Return the number of measured rollouts in the folder."""
        try:
            with self.folder.rollouts.output.open("rb") as file:
                return sum(line.endswith(b"\n") and not is_masked_line(line) for line in file)
        except FileNotFoundError:
            return 0


def config_paths_of(config: EvalConfig, source: ModelSource) -> tuple[str, ...]:
    """Return the config files of the servers."""
    environments = [f"resources_servers/{name}/configs/{name}.yaml" for name in config.environments]
    return tuple(dict.fromkeys([*source.config_paths, *environments, *config.config_paths]))


def choose_data(
    config: EvalConfig, specs: Sequence[ServerSpec], servers: Sequence[ServerSpec] = ()
) -> tuple[str | None, str | dict[str, Any] | None]:
    """Return the input file or the mixture: the configured one, or the example rows of the environments.

    `specs`: the agents. `servers`: all servers, among them the agents' environments.
    """
    if config.input_jsonl_fpath is not None and config.data is not None:
        raise OperatorError("found both input_jsonl_fpath and data (a mixture); expected one of them")
    if config.input_jsonl_fpath is not None or config.data is not None:
        return config.input_jsonl_fpath, config.data
    examples = {spec.name: path for spec in specs if (path := _example_rows(spec))} or _rows_beside(specs, servers)
    if config.agent_name is not None:
        examples = {name: path for name, path in examples.items() if name == config.agent_name}
    if not examples:
        raise OperatorError("no data given; expected --input-jsonl-fpath rows.jsonl or --data ... (a mixture)")
    if len(examples) == 1:
        return next(iter(examples.values())), None
    datasets = [{"name": name, "path": path, "agent_name": name} for name, path in examples.items()]
    return None, {"datasets": datasets}


def _example_rows(spec: ServerSpec) -> str | None:
    for dataset in spec.settings.datasets:
        path: Any = dataset.get("jsonl_fpath") if isinstance(dataset, Mapping) else None
        if isinstance(path, str) and dataset.get("type") == "example":
            return path
    return None


def _rows_beside(specs: Sequence[ServerSpec], servers: Sequence[ServerSpec]) -> dict[str, str]:
    """Return agent -> data/example.jsonl in the folder of its environment, if no config names example rows."""
    folders = {spec.name: spec.folder for spec in servers if spec.family == "resources_servers" and not spec.is_foreign}
    found = {}
    for spec in specs:
        server = spec.raw.get("resources_server")
        folder = folders.get(server.get("name", "")) if isinstance(server, Mapping) else None
        if folder is not None and (path := folder / "data" / "example.jsonl").is_file():
            found[spec.name] = str(path)
    return found


def tasks_of_folder(tasks: Tasks, folder: EvalFolder, agent: str | None) -> Tasks:
    """Return `tasks`; if they are some tasks of the input that the folder was started with, as a subset of that input.

    `ng_collect_rollouts` accepts them likewise, so that `remaining_prompts.jsonl` continues an evaluation.
    """
    output = folder.rollouts.output
    has_rows = output.is_file() and output.stat().st_size > 0
    if not isinstance(tasks, TaskFile) or tasks.limit is not None or folder.worker is not None or not has_rows:
        return tasks
    subset, _ = subset_of_original(tasks, folder.rollouts, agent)
    return subset or tasks
