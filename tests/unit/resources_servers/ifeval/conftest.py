"""Collects the comparison with lm_eval's IFEval only if lm_eval is installed (make test-lm-eval)."""

from __future__ import annotations

import importlib.util

_LM_EVAL_INSTALLED = all(importlib.util.find_spec(name) for name in ("lm_eval", "immutabledict", "nltk"))
collect_ignore_glob = [] if _LM_EVAL_INSTALLED else ["test_against_lm_eval.py"]
