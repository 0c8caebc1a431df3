"""Where the figures of a training run go: metrics.jsonl, and the loggers that get the same figures.

metrics_log.py      metrics.jsonl, which is the record of the run, and the interface of loggers
sinks.py            loggers by name: rich, print, wandb, mlflow
"""
