from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from pathlib import Path

import pytest

from rollyard.services.runtime.process_setup import raise_file_limit
from tests.support.waiting import deadline_s

_SETTINGS = (
    *("ROLLYARD_TOKEN", "policy_base_url", "policy_api_key", "policy_model_name"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "PYTHONPATH"),
    *("PYTHONWARNINGS", "PYTHONOPTIMIZE", "PYTHONDEVMODE", "XDG_CACHE_HOME"),
    # Many containers set it, and each of hundreds of commands that the tests start would compile all modules again.
    "PYTHONDONTWRITEBYTECODE",
)
"""Variables that change what our commands do or print, or how long they take."""


def pytest_configure(config: pytest.Config) -> None:
    """A shell's background job ignores Ctrl-C, nohup ignores SIGHUP, and so would every command that a test starts."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    os.umask(0o022)
    raise_file_limit()  # many systems give an ordinary user's shell 1,024: too few for a thousand requests
    for name in _SETTINGS:
        os.environ.pop(name, None)
    deadline_s()  # measured here, for all workers
    sys.dont_write_bytecode = False  # pytest stores the test modules, whose assertions it rewrites, by the same rule
    with contextlib.suppress(ImportError):  # the environments for other software lack it
        from hypothesis import HealthCheck, settings

        # A busy machine needs longer than a quiet one to generate examples; that is no defect.
        settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("busy")
    gc.disable()  # until all tests are collected, because nearly everything that is created until then is kept


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end, so no garbage collection need look at it again."""
    gc.freeze()
    gc.enable()


def pytest_xdist_auto_num_workers() -> int:
    """One more than cores, because many tests wait for processes and deadlines; each collects all tests first."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
