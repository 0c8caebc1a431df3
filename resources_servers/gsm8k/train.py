"""Train a model on GSM8K with a vLLM server that is already running.

The folder of the run, --output-dir, contains checkpoints, metrics and rollouts. Running the same command again
continues an interrupted run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rollyard.records.io.foreground import run_foreground
from rollyard.records.io.jsonl import replace
from rollyard.records.io.own_command import own_command
from rollyard.records.io.script import run_script
from rollyard.records.rollouts.rollout_files import check_output
from rollyard.resources_servers.gsm8k.prepared_rows import prepare_rows
from rollyard.resources_servers.gsm8k.rollout_log import write_rollout_log
from rollyard.resources_servers.gsm8k.served_model import served_model
from rollyard.resources_servers.gsm8k.train_options import train_settings, training_parser
from rollyard.services.config.settings_file import dump_settings
from rollyard.services.server.settings import parse_settings
from rollyard.training.run_paths import TrainingPaths
from rollyard.training.train_config import TrainConfig


def main(arguments: list[str] | None = None) -> int:
    """Prepare the rows, run `ng_train` on them, and write the rollout log. Returns the exit status."""
    options = training_parser(__doc__).parse_args(arguments)
    check_output(options.rollout_log)
    # Beside the run's folder, which only ng_train writes.
    inputs = options.output_dir.resolve().with_name(f"{options.output_dir.name}_inputs")
    rows, evaluation_rows = inputs / "train.jsonl", inputs / "eval.jsonl" if options.eval_limit else None
    train_config(options, rows, evaluation_rows, options.model)  # invalid options, before waiting for the server
    name = served_model(f"http://{options.host}:{options.port}", options.model)
    config = train_config(options, rows, evaluation_rows, name)
    if status := _prepare(options, rows, evaluation_rows):
        return status
    file = inputs / "train.yaml"
    keys = config.model_dump(mode="json", exclude_defaults=True)
    replace(file, dump_settings(keys).encode())
    status = run_foreground(own_command("ng_train", str(file)))
    files = sorted((options.output_dir / "rollouts").glob("step_*.jsonl"))
    if played := [path for path in files if path == TrainingPaths(options.output_dir).rollouts(int(path.stem[5:11]))]:
        print(f"Wrote {write_rollout_log(played, options.rollout_log)} rollouts to {options.rollout_log}")
    return status


def train_config(
    options: argparse.Namespace, rows: Path, evaluation_rows: Path | None, served_name: str
) -> TrainConfig:
    """Return the training run that the options stand for. Raises OperatorError for invalid values."""
    return parse_settings(TrainConfig, train_settings(options, rows, evaluation_rows, served_name), "train_gsm8k.py")


def _prepare(options: argparse.Namespace, rows: Path, evaluation_rows: Path | None) -> int:
    """Write the rows of training and evaluation, and return the exit status."""
    rows.parent.mkdir(parents=True, exist_ok=True)
    prompt, local = options.system_prompt, options.local
    status = prepare_rows(rows, split=options.split, system_prompt=prompt, limit=options.limit, local=local)
    if status or evaluation_rows is None:
        return status
    return prepare_rows(
        evaluation_rows,
        split=options.eval_split,
        system_prompt=prompt,
        limit=options.eval_limit,
        local=options.eval_local or local,
    )


if __name__ == "__main__":
    run_script(main)
