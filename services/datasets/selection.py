"""The rows and the agent that a command's config selects, checked before anything is started."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rollyard.records.data_files import DataFiles
from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.services.config.plugins import search_roots
from rollyard.services.config.run_config import RunConfig, ServerSpec
from rollyard.services.datasets.dataset import read_mixture
from rollyard.services.datasets.mixture import DatasetTasks, Mixture, TaskFile


def agents_in(run_config: RunConfig) -> list[ServerSpec]:
    return [spec for spec in run_config.servers if spec.family == "agents"]


def choose_agent(name: str | None, agents: Sequence[str]) -> str | None:
    """Return the default agent: `name`, or the only one. Raises OperatorError if `name` is not one of `agents`."""
    if name is None:
        return agents[0] if len(agents) == 1 else None
    if name not in agents:
        raise OperatorError(
            f"agent_name={name} is not an agent of the configs{did_you_mean(name, agents)} "
            f"(available: {', '.join(agents) or 'none'})"
        )
    return name


def check_agents(agents: Iterable[str], run_config: RunConfig) -> None:
    """Raise OperatorError for an agent of the rows that the configs do not define."""
    known = [spec.name for spec in agents_in(run_config)]
    for agent in sorted(agents):
        if agent not in known:
            raise OperatorError(
                f"the rows name the agent {agent!r}, which the configs do not define{did_you_mean(agent, known)} "
                f"(available: {', '.join(known) or 'none'})"
            )


def read_tasks(
    here: Path,
    input_jsonl_fpath: str | None,
    data: str | dict[str, Any] | None,
    agent: str | None,
    limit: int | None,
    *,
    key: str = "input_jsonl_fpath",
) -> DatasetTasks:
    """Read the rows as `ng_collect_rollouts` does. Raises OperatorError. `key`: the setting's name, for messages."""
    files = DataFiles(search_roots(here))
    if input_jsonl_fpath is not None:
        file = files.find(input_jsonl_fpath) or Path(input_jsonl_fpath)
        if isinstance(file, Path) and not file.exists():
            raise OperatorError(
                f"{key}={input_jsonl_fpath} does not exist (looked in {', '.join(map(str, files.roots))})"
            )
        return TaskFile(file, agent=agent, limit=limit)
    assert data is not None
    return Mixture(read_mixture(data, files.roots), files, agent=agent, limit=limit)


def notes_of(tasks: DatasetTasks) -> list[str]:
    """Return the warnings about a mixture, which the user must see before it is used."""
    return tasks.notes if isinstance(tasks, Mixture) else []
