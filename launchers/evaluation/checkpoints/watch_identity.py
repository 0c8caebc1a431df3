"""The identity of a watch: its checkpoints, and what all their evaluations have in common."""

from __future__ import annotations

from pathlib import Path

import orjson

from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.pipeline.identity import ENGINE
from rollyard.records.errors import OperatorError
from rollyard.records.io.json_differences import differences
from rollyard.records.io.jsonl import replace
from rollyard.records.types import Json

_COMMON = (
    *("environments", "config_paths", "overrides", "agent_name", "input_jsonl_fpath", "data", "limit", "num_repeats"),
    *("num_repeats_add_seed", "responses_create_params", "pass_threshold"),
)
"""Settings that change the rows, the agents or the figures of a table."""


def identity_of_watch(config: EvalConfig, address: str) -> Json:
    """Return what must not change while a table grows. `address`: the path or S3 URL of the checkpoints."""
    settings = config.model_dump(mode="json")
    engine = {name: settings["vllm"][name] for name in ENGINE}
    return {"watch": address, **{name: settings[name] for name in _COMMON}, "vllm": engine}


def check_watch_identity(folder: Path, identity: Json) -> None:
    """Raise OperatorError if `folder` holds the table of a different watch. Changes nothing."""
    path = _path(folder)
    try:
        before = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise OperatorError(f"{path} cannot be read: {error}. Choose another output_dir") from error
    if found := list(differences(before, identity)):
        listed = "\n".join(f"  {name}: {old!r} in the folder, {new!r} now" for name, old, new in found)
        raise OperatorError(
            f"{folder} belongs to a watch of other checkpoints, or with other parameters:\n{listed}\n"
            "Repeat the original command to continue it, or choose another output_dir"
        )


def write_watch_identity(folder: Path, identity: Json) -> None:
    replace(_path(folder), orjson.dumps(identity, option=orjson.OPT_INDENT_2) + b"\n")


def _path(folder: Path) -> Path:
    return folder / "watch_identity.json"
