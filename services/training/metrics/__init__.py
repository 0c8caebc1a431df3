"""Metrics of a training run: what each step reports, metrics.jsonl, and the loggers that get the same figures.

step_metrics.py     all figures of a step by name; docs/training.md defines them
metrics_log.py      metrics.jsonl, which is the record of the run, and the interface of loggers
sinks.py            loggers by name: rich, print, wandb, mlflow
"""
