"""Runs the installed lm_eval (make test-lm-eval); without it, nothing in this folder is collected."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("lm_eval") else ["test_*.py"]
