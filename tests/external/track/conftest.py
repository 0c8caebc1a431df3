"""With the trackers' packages (make test-track) real runs in their stores; without them, what is said then."""

from __future__ import annotations

import importlib.util

HERE = {name: importlib.util.find_spec(name) is not None for name in ("wandb", "mlflow")}
collect_ignore_glob = [f"test_{name}.py" for name, here in HERE.items() if not here]
if any(HERE.values()):
    collect_ignore_glob.append("test_without_packages.py")
