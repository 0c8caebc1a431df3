"""Evaluations: `ng_eval` (evaluate.py) and `ng_lm_eval` (lm_eval.py)."""
