"""Trains with a config of rlvr-experiments: `python entrypoints/train_grpo.py CONFIG [KEY=VALUE ...]`.

Further arguments are those of `ng_train`, such as max_steps=5 or dry_run=true.
"""

import argparse
import os
from pathlib import Path

from rollyard.services.config.settings_file import dump_settings, load_settings
from rollyard.services.io.foreground import run_foreground
from rollyard.services.io.jsonl import replace
from rollyard.services.io.own_command import own_command
from rollyard.services.io.script import run_script
from rollyard.services.training.rlvr.conversion import train_config
from rollyard.services.training.rlvr.rlvr_config import RlvrConfig


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("config", type=Path)
    parser.add_argument("arguments", nargs="*", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    config = load_settings(RlvrConfig, str(options.config), [], [Path.cwd()])
    # In a SageMaker job, checkpoints in this folder are uploaded as they appear; other folders are lost with the job.
    run_dir = os.environ.get("RLVR_RUN_DIR")
    output_dir = Path(run_dir) / "output" if run_dir else Path("results") / options.config.stem
    converted = train_config(config, output_dir)
    for note in converted.notes:
        print(f"{options.config}: {note}")
    file = output_dir.with_name(f"{output_dir.name}.train.yaml")
    file.parent.mkdir(parents=True, exist_ok=True)
    keys = converted.config.model_dump(mode="json", exclude_defaults=True)
    replace(file, dump_settings(keys).encode())
    return run_foreground(own_command("ng_train", str(file), *options.arguments))


if __name__ == "__main__":
    run_script(main)
