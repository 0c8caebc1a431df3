"""Real runs in the trackers' stores. Without their packages (make test-track installs them) nothing is collected."""

from __future__ import annotations

import importlib.util

HERE = {name: importlib.util.find_spec(name) is not None for name in ("wandb", "mlflow")}
collect_ignore_glob = [f"test_{name}.py" for name, here in HERE.items() if not here]
