"""Other processes: whether they run, waiting for their end, and calls in a child of this process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

from tests.support.waiting import deadline_s, eventually

T = TypeVar("T")
FORKS = multiprocessing.get_context("fork")
"""Children have all modules already; a new interpreter takes a second to import them."""


def in_child(function: Callable[..., T], *arguments: object) -> T:
    """Call a function of a module in a child process, whose limits and user it may change. Return its result."""
    with ProcessPoolExecutor(1, FORKS) as pool:
        return pool.submit(function, *arguments).result(deadline_s())


def wait_for_end(pid: int) -> None:
    eventually(f"process {pid} ends", lambda: not is_running(pid))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
