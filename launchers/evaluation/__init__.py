"""Evaluations: `ng_eval` (evaluate.py), `ng_gate` (gate.py) and `ng_lm_eval` (lm_eval_process.py)."""
