"""Scripts around the evaluation: run_evaluation.py, which run_*_eval.sh call, and sample_rollouts.py."""
