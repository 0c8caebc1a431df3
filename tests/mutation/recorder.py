"""A plugin of pytest: writes each event to the file $MUTATION_EVENTS, and ends the run at a limit of CPU time."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

_EVENTS = Path(os.environ["MUTATION_EVENTS"])
_LIMIT_S = float(os.environ["MUTATION_CPU_S"])


def _cpu_s() -> float:
    return sum(os.times()[:4])


class Recorder:
    def __init__(self) -> None:
        self._started = 0.0  # when the first test began; imports do not count

    def _write(self, **event: object) -> None:
        with _EVENTS.open("a") as file:
            file.write(json.dumps({**event, "cpu": _cpu_s() - self._started}) + "\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._write(kind="collected", test=report.nodeid, failed=report.failed)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._started = _cpu_s()
        for file in {item.nodeid.partition("::")[0]: None for item in session.items}:
            self._write(kind="file", test=file, failed=False)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(kind="start", test=nodeid, failed=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._write(kind=report.when, test=report.nodeid, failed=report.failed)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        if _cpu_s() - self._started > _LIMIT_S:
            item.session.shouldstop = "limit of CPU time"


def pytest_configure(config: pytest.Config) -> None:
    sys.path[:] = [path for path in sys.path if path != str(Path(__file__).parent)]
    config.pluginmanager.register(Recorder())
