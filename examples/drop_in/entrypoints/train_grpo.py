"""Trains with a config of rlvr-experiments: `python entrypoints/train_grpo.py CONFIG [KEY=VALUE ...]`.

Further arguments are those of `ng_train`, such as max_steps=5 or dry_run=true. Rows that are not prepared yet are made
from s3://BUCKET/PREFIX/datasets/NAME_SPLIT/ (see sagemaker.yaml), as `save_to_disk` wrote it, else from the hub.
The last checkpoint is also saved as `final`.
"""

import argparse
import importlib
import os
import shutil
from pathlib import Path
from typing import Any

import orjson

from rollyard.launchers.sagemaker.settings import FILE, find_target, read_settings
from rollyard.records import s3
from rollyard.records.data_files import DataFiles
from rollyard.records.errors import RollyardError
from rollyard.records.jsonl import replace
from rollyard.records.rows import exact_objects
from rollyard.records.script import own_command, run_foreground, run_script
from rollyard.services.config.plugins import search_roots
from rollyard.services.config.settings_file import dump_settings, load_settings
from rollyard.training.checkpoints import LATEST
from rollyard.training.rlvr import ENVIRONMENTS, RlvrConfig, train_config
from rollyard.training.run_folder import TrainingPaths

PREPARE = {
    "gsm8k": ("--split", "{split}"),
    "math": ("--split", "{split}"),
    "mbpp": ("--split", "{split}"),
    "humaneval": (),
    "ifeval": ("--dataset", "ifeval_train"),
}
"""Dataset -> options of its environment's prepare.py."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("config", type=Path)
    parser.add_argument("arguments", nargs="*", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    config = load_settings(RlvrConfig, str(options.config), [], [Path.cwd()])
    # In a SageMaker job, checkpoints in this folder are uploaded as they appear; other folders are lost with the job.
    run_dir = os.environ.get("RLVR_RUN_DIR")
    output_dir = Path(run_dir) / "output" if run_dir else Path("results") / (config.run.name or options.config.stem)
    converted = train_config(config, output_dir)
    for note in converted.notes:
        print(f"{options.config}: {note}")
    file = output_dir.with_name(f"{output_dir.name}.train.yaml")
    file.parent.mkdir(parents=True, exist_ok=True)
    keys = converted.config.model_dump(mode="json", exclude_defaults=True)
    for dataset in keys["data"]["datasets"]:
        prepare_rows(dataset, output_dir.with_name(f"{output_dir.name}.data"))
    replace(file, dump_settings(keys).encode())
    status = run_foreground(own_command("ng_train", str(file), *options.arguments))
    if status == 0:
        save_final(TrainingPaths(output_dir).checkpoints)
    return status


def save_final(checkpoints: Path) -> None:
    """Make `final` of the newest checkpoint, with hard links. A job uploads it as RUN_final."""
    if not (checkpoints / LATEST).is_file():
        return  # a dry run
    newest = orjson.loads((checkpoints / LATEST).read_bytes())["last_checkpoint"]
    partial, final = checkpoints / ".final.partial", checkpoints / "final"
    for folder in (partial, final):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(checkpoints / newest, partial, copy_function=os.link)
    partial.rename(final)


def prepare_rows(dataset: dict[str, Any], folder: Path) -> None:
    """Set the dataset's `path` to a file in `folder` with its rows, unless its path names such a file already."""
    name, split, path = dataset["name"], dataset["split"], dataset.get("path")
    files = DataFiles(search_roots(Path.cwd()))
    if path is None:
        prepared = files.find(f"resources_servers/{ENVIRONMENTS[name]}/data/{split}.jsonl") is not None
    else:
        prepared = name not in PREPARE or "responses_create_params" in next(exact_objects(files.get(path))).value
    if prepared:
        return
    target = folder / f"{name}_{split}.jsonl"
    dataset["path"] = str(target)
    if target.is_file():  # repeating the command continues with the same rows
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if path is not None:
        source = ["--s3" if path.startswith(s3.SCHEME) else "--local", path, "--offline"]
    else:
        source = ["--s3", f"{project}/datasets/{name}_{split}/"] if (project := project_in_s3()) else []
    selected = [word.format(split=split) for word in PREPARE[name]]
    module = importlib.import_module(f"rollyard.resources_servers.{ENVIRONMENTS[name]}.prepare")
    module.main(["--output", str(target), *selected, *source])


def project_in_s3() -> str | None:
    """Return s3://BUCKET/PREFIX of the project's settings; None without them, or if AWS cannot be used."""
    settings = read_settings(None, Path.cwd(), os.environ, {})
    if settings.bucket is not None:
        return f"{s3.SCHEME}{settings.bucket}/{settings.prefix}"
    if not Path(FILE).is_file():
        return None
    try:
        return find_target(settings).s3
    except RollyardError as error:
        print(f"{FILE}: S3 is not used: {error}", flush=True)
        return None


if __name__ == "__main__":
    run_script(main)
