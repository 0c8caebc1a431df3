"""Metrics of a training run: what each step reports, metrics.jsonl, and the loggers that get the same figures.

step_metrics.py     all figures of a step by name; docs/training.md defines them
staleness.py        how many updates older than the trained policy the weights of a token were
metrics_log.py      metrics.jsonl, which is the record of the run
metrics_sink.py     the interface of loggers
sinks.py            loggers by name: rich, print, wandb, mlflow
curves.py           command that draws the metrics of several runs as a picture
"""
