"""A pool for readers of large files that starts no process, but passes calls and results as one does: pickled."""

from __future__ import annotations

import pickle
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from rollyard.analysis.metrics import load as parallel_reader


class PicklingPool(ThreadPoolExecutor):
    """Replaces ProcessPoolExecutor, whose processes take half a second to start."""

    def __init__(self, workers: int, context: object, **initializer: object) -> None:
        super().__init__(workers)

    def submit(self, function: Any, /, *arguments: Any, **more: Any) -> Future[Any]:
        return super().submit(_unpickled_call, pickle.dumps((function, arguments, more)))


def _unpickled_call(call: bytes) -> Any:
    function, arguments, more = pickle.loads(call)
    return pickle.loads(pickle.dumps(function(*arguments, **more)))


def read_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pools of reading processes be pools of threads. One test of each kind of reader has real processes."""
    monkeypatch.setattr(parallel_reader, "ProcessPoolExecutor", PicklingPool)
