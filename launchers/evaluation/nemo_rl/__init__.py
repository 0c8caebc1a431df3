"""Evaluation configs of NeMo-RL: read, run with this stack, results in its formats."""
