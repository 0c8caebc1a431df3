"""Runs the benchmarks of a YAML file with lm_eval: `python entrypoints/eval_benchmarks.py CONFIG`."""

import argparse
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rollyard.launchers.evaluation.lm_eval import BenchmarkConfig, run_commands
from rollyard.records.script import run_script
from rollyard.services.config.load import read_yaml
from rollyard.services.server.settings import parse_settings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("config", type=Path)
    parser.add_argument("--watch-path", help="folder or s3:// prefix to watch, instead of that of the config")
    options = parser.parse_args()
    tree: Any = OmegaConf.to_container(read_yaml(options.config), resolve=True)
    config = parse_settings(BenchmarkConfig, tree, str(options.config))
    return run_commands(config.commands(watch_path=options.watch_path))


if __name__ == "__main__":
    run_script(main)
