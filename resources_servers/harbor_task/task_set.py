"""The tasks of a folder: those that can be played, and why the others cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rollyard.records.errors import OperatorError
from rollyard.resources_servers.harbor_task.dockerfile.images import host_image
from rollyard.resources_servers.harbor_task.settings import EXAMPLES, HarborSettings
from rollyard.resources_servers.harbor_task.task_folder import TaskFolder, is_task, load_folder
from rollyard.resources_servers.harbor_task.unsupported import UnsupportedTask
from rollyard.services.sandbox.inside.box.root import SYSTEM_PATHS
from rollyard.services.sandbox.shell.shell_box import is_visible


@dataclass(frozen=True)
class TaskSet:
    """All tasks by the names of their folders."""

    playable: Mapping[str, TaskFolder]
    refused: Mapping[str, str]
    """Why a task cannot be played."""


def load_tasks(settings: HarborSettings) -> TaskSet:
    """Load all tasks. Raises OperatorError if there are none, or if a box would show their tests to the model."""
    root = EXAMPLES if settings.tasks is None else settings.tasks
    if not root.is_dir():
        raise OperatorError(f"tasks: {root} is not a folder; expected a folder of task folders, or one task folder")
    folders = [root] if is_task(root) else sorted(path for path in root.iterdir() if is_task(path))
    if not folders:
        raise OperatorError(f"tasks: {root} contains no task folder (a folder with a task.toml)")
    _check_hidden(root, settings)
    host, playable, refused = host_image(), {}, {}
    for folder in folders:
        try:
            if folder.is_symlink():
                raise UnsupportedTask("the task folder is a link; expected the folder itself")
            playable[folder.name] = load_folder(folder.resolve(), host, settings.accept_images)
        except UnsupportedTask as error:
            refused[folder.name] = str(error)
    return TaskSet(playable, refused)


def _check_hidden(root: Path, settings: HarborSettings) -> None:
    for path in settings.host_paths:
        if not path.is_absolute() or not path.is_dir():
            raise OperatorError(f"host_paths: {path} is not a folder with an absolute path")
    shown = [*SYSTEM_PATHS, *map(str, settings.host_paths)]
    if is_visible(str(root), shown):
        raise OperatorError(
            f"tasks: {root} is in a folder that every box shows ({', '.join(shown)}), so the model could read the "
            "tests: copy the tasks to another folder"
        )
