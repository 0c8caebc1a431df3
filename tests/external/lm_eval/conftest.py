"""With lm_eval installed (make test-lm-eval) it is run for real; without it nothing of this folder is run."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("lm_eval") else ["test_*.py"]
