"""Writes small task folders for the tests."""

from __future__ import annotations

from pathlib import Path

from rollyard.resources_servers.harbor_task.dockerfile import HostImage
from rollyard.resources_servers.harbor_task.task_folder import Host, TaskFolder, load_folder
from rollyard.services.sandbox.shell_box import NamespaceBoxes

HOST = HostImage("debian", frozenset({"12", "bookworm"}), "3.11")
TEST = "#!/bin/bash\nif [ -f /app/done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


def write_task(
    root: Path,
    *,
    name: str = "task",
    dockerfile: str = "FROM debian:12\nWORKDIR /app\n",
    config: str = "",
    instruction: str = "Create the file done.",
    test: str = TEST,
    files: dict[str, str] | None = None,
) -> Path:
    """Write a task folder and return its path. `files`: further files by their path in the folder."""
    folder = root / name
    texts = {
        "task.toml": config,
        "instruction.md": instruction,
        "environment/Dockerfile": dockerfile,
        "tests/test.sh": test,
        "solution/solve.sh": "touch /app/done\n",
        **(files or {}),
    }
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def load(folder: Path, *accepted: str) -> TaskFolder:
    """Load the folder on a host that is Debian 12."""
    return load_folder(folder, Host(HOST, accepted, NamespaceBoxes.lacks))
