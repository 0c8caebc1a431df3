"""With lm_eval's own IFEval installed (make test-lm-eval) ours is held against it; without it that is not collected."""

from __future__ import annotations

import importlib.util

_THEIRS = all(importlib.util.find_spec(name) for name in ("lm_eval", "immutabledict", "nltk"))
collect_ignore_glob = [] if _THEIRS else ["test_against_lm_eval.py"]
