"""Tests with real trackers; tests of a tracker that is not installed (make test-track) are not collected."""

from __future__ import annotations

import importlib.util

INSTALLED_TRACKERS = {name: importlib.util.find_spec(name) is not None for name in ("wandb", "mlflow")}
collect_ignore_glob = [f"test_{name}.py" for name, installed in INSTALLED_TRACKERS.items() if not installed]
