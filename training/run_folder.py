"""TrainingFolder: the folder of a training run, locked by the trainer, and which settings may change on resuming."""

from __future__ import annotations

import os
import platform
import re
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import orjson
import yaml
from pydantic import ValidationError

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.jsonl import replace
from rollyard.records.locked_files import LocksUnsupported, open_locked
from rollyard.records.types import Json, differences
from rollyard.training.train_config import TrainConfig


@dataclass(frozen=True, slots=True)
class TrainingPaths:
    root: Path

    @property
    def config(self) -> Path:
        """The settings of the run, complete with defaults."""
        return self.root / "config.yaml"

    @property
    def run_record(self) -> Path:
        """Name, time, host, command line and git commit."""
        return self.root / "run.json"

    @property
    def patches(self) -> Path:
        """What git does not have committed: status, differences, names of untracked files."""
        return self.root / "patches"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def traces(self) -> Path:
        """trace.jsonl (time of each stage) and samples.jsonl (what became of each task)."""
        return self.root / "traces"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def weights(self) -> Path:
        """The weights that the engines load, one folder per version."""
        return self.root / "weights"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def token_pairs(self, step: int) -> Path:
        return self.root / "token_pairs" / f"{version_of_step(step)}.json"

    def rollouts(self, step: int) -> Path:
        return self.root / "rollouts" / f"{version_of_step(step)}.jsonl"

    def evaluation(self, step: int) -> Path:
        return self.root / "evaluations" / f"{version_of_step(step)}.jsonl"


_VERSION = re.compile(r"step_(\d{6,})(?:[-.].*)?")


def version_of_step(step: int) -> str:
    """Return the name of the weights after `step` updates, which is also that of their checkpoint: step_000012."""
    return f"step_{step:06d}"


def updates_of(version: str | None) -> int:
    """Return the number of updates of a version, such as 12 for `step_000012` and `step_000012-r1`.

    Raises RunError if there is no version, or one of something else: as some number, rollouts of any age would pass.
    """
    if version is None:
        raise RunError(
            "the version of the weights that sampled a rollout is unknown, so that its age cannot be determined: set "
            "trainer_endpoints: true on the model server of the policy, and let agents call the policy through it"
        )
    if (found := _VERSION.fullmatch(version)) is None:
        raise RunError(
            f"a rollout was sampled with weights of version {version!r}; expected a version of this training run, such "
            f"as {version_of_step(0)!r}: publish the initial weights before the first step, or set policy_version: "
            f"{version_of_step(0)} on the model server of the policy"
        )
    return int(found[1])


def version_names(folder: Path) -> Callable[[int], str]:
    """Return the function that names the versions in `folder` by their step. Those of two starts of a training differ,
    because a name is never used for two versions.
    """
    again = folder.is_dir() and any(folder.iterdir())
    suffix = time.strftime("-r%Y%m%d%H%M%S") if again else ""
    return lambda step: version_of_step(step) + suffix


_LOCK = ".ng_train.lock"
_DATA, _EVALUATION = "data", "evaluation_data"
_DATASETS = {_DATA: "dataset", _EVALUATION: "evaluation dataset"}
_PACKAGES = ("rollyard", "torch", "transformers", "trl", "accelerate", "peft", "vllm")


class TrainingFolder:
    """Config, record and git state of a run. Only one process at a time has it open."""

    def __init__(self, config: TrainConfig, record: Json) -> None:
        self.config = config
        self.paths = TrainingPaths(config.output_dir)
        self._record = record

    @classmethod
    @contextmanager
    def opened(
        cls, config: TrainConfig, *, command: Sequence[str], project: Path, print_line: Callable[[str], None]
    ) -> Iterator[TrainingFolder]:
        """Lock the folder, and record this start with its settings and the git state of `project`.

        Raises OperatorError if the folder has a run with other settings, and RunError if another process trains in it
        or it cannot be written.
        """
        paths = TrainingPaths(config.output_dir)
        try:
            paths.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OperatorError(f"output_dir {paths.root} cannot be created: {error.strerror}") from error
        try:
            descriptor = open_locked(paths.root / _LOCK)
        except LocksUnsupported:
            raise
        except RunError as error:
            raise RunError(
                f"another process is training in {paths.root}: wait for it, or choose another output_dir"
            ) from error
        try:
            before = read_settings(paths.config)
            if before is not None:
                check_settings(before, config, paths.root)
            folder = cls(config, _read_record(paths.run_record))
            folder._begin(command, project)
            if folder.starts > 1:
                print_line(f"{paths.root}: start {folder.starts} of this run")
            yield folder
        finally:
            os.close(descriptor)

    @property
    def name(self) -> str:
        """That of the folder at its first start."""
        return str(self._record["name"])

    @property
    def run_id(self) -> str:
        """Identifies the run to trackers, which thereby continue it when training is resumed."""
        return str(self._record["id"])

    @property
    def starts(self) -> int:
        """How often training has been started in this folder, this time included."""
        return len(self._record["starts"])

    def check_data(self, identity: Json, evaluation: Json | None = None) -> None:
        """Record the identities of the datasets. Raises OperatorError if the run was started with other rows."""
        check_rows(self.paths, identity, evaluation)
        self._record.setdefault(_DATA, identity)
        if evaluation is not None:
            self._record.setdefault(_EVALUATION, evaluation)
        self._write()

    def record_end(self, state: str, step: int) -> None:
        self._record["starts"][-1] |= {"ended": time.time(), "state": state, "step": step}
        if state == "complete":
            self._record["complete"] = {"step": step, "max_steps": self.config.max_steps}
        self._write()

    def _begin(self, command: Sequence[str], project: Path) -> None:
        start = {
            "time": time.time(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "command": list(command),
            "git": git_record(project),
            "versions": _versions(),
        }
        self._record = {
            "id": secrets.token_hex(8),
            "name": self.paths.root.absolute().name,
            "created": start["time"],
            **self._record,
            "starts": [*self._record.get("starts", ()), start],
        }
        # The number of starts is on disk before a version of the weights is named after it.
        self._write()
        write_patches(project, self.paths.patches if self.starts == 1 else self.paths.patches / f"start_{self.starts}")
        replace(self.paths.config, settings_yaml(self.config).encode())

    def _write(self) -> None:
        replace(self.paths.run_record, orjson.dumps(self._record, option=orjson.OPT_INDENT_2) + b"\n")


def completed_step(config: TrainConfig) -> int | None:
    """Return the number of updates after which the run in the folder was complete; None if it is not complete with the
    current max_steps, or its last checkpoint is gone.
    """
    paths = TrainingPaths(config.output_dir)
    end = _read_record(paths.run_record).get("complete")
    if not end or end["max_steps"] != config.max_steps:
        return None
    step = int(end["step"])
    return step if (paths.checkpoints / version_of_step(step)).is_dir() else None


def check_rows(paths: TrainingPaths, identity: Json, evaluation: Json | None) -> None:
    """Raise OperatorError if the run in the folder was started with other rows."""
    record = _read_record(paths.run_record)
    for name, now in ((_DATA, identity), (_EVALUATION, evaluation)):
        before = record.get(name, now)
        if now is not None and before != now:
            raise OperatorError(
                f"{paths.root} was started with other rows: its {_DATASETS[name]} had {before}, now it has {now}. "
                "Restore the dataset, or choose another output_dir"
            )


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise RunError(
            f"{path} is not valid JSON ({error}). It counts the starts of this run: restore it, or choose another "
            "output_dir"
        ) from error
    return dict(record)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


MAY_CHANGE = (
    *("output_dir", "head", "ray_head_node_address", "trainer_num_gpus", "ready_timeout_s", "loggers", "weights"),
    *("checkpoint_interval", "keep_checkpoints"),
    *("num_samples_in_parallel", "rollout_timeout_s", "max_attempts", "max_failure_rate"),
    *("evaluation.before_start", "evaluation.interval", "evaluation.num_samples_in_parallel"),
    *("optimizer.micro_token_budget", "optimizer.gradient_checkpointing", "optimizer.accelerate_config"),
)
"""Settings that change neither the rollouts nor the gradients, so that a resumed run may have other ones."""
_ADDRESS = ("policy_base_url", "policy_api_key")
"""Overrides that say where the policy's endpoint is; a restarted one may have another port."""


def settings_yaml(config: TrainConfig) -> str:
    """Return the contents of config.yaml: every setting, defaults included."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def read_settings(path: Path) -> TrainConfig | None:
    """Return the settings of a run; None if there is no file. Raises OperatorError if they cannot be read."""
    try:
        return TrainConfig.model_validate(yaml.safe_load(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (yaml.YAMLError, ValidationError) as error:
        raise OperatorError(
            f"{path} cannot be read ({str(error).splitlines()[0]}): it was changed, or written by another version of "
            "Rollyard. Restore it, or choose another output_dir"
        ) from error


def check_settings(before: TrainConfig, now: TrainConfig, root: Path) -> None:
    """Raise OperatorError with the names of the settings that a resumed run must not change."""
    changed = [
        f"{key} was {old!s:.100}, now {new!s:.100}"
        for key, old, new in differences(_compared(before), _compared(now))
        if not _may_change(key, now)
    ]
    if changed:
        raise OperatorError(
            f"{root} contains a run with other settings: {'; '.join(changed)}. Use the earlier settings to resume it, "
            "or choose another output_dir"
        )


def _compared(config: TrainConfig) -> Json:
    kept = [text for text in config.overrides if text.lstrip("+").partition("=")[0] not in _ADDRESS]
    return {**config.model_dump(mode="json"), "overrides": kept}


def _may_change(key: str, config: TrainConfig) -> bool:
    if key == "max_steps":
        # Other schedules depend on the number of steps from the first one on.
        return config.optimizer.lr_scheduler in ("constant", "constant_with_warmup")
    return any(key == known or key.startswith(f"{known}.") for known in MAY_CHANGE)


_TIMEOUT_S = 30.0
_PATCHES = {
    "git_status.txt": ("status", "--short", "--branch"),
    "git_diff.patch": ("diff",),
    "git_diff_cached.patch": ("diff", "--cached"),
    "git_untracked.txt": ("ls-files", "--others", "--exclude-standard"),
}
"""The files and the git commands whose output they contain."""


def git_record(project: Path) -> Json:
    """Return root, commit and branch of the repository that contains `project`; empty if there is none.

    A record must not stop a run, so values that git does not provide are left out.
    """
    found = {
        "root": _git(project, "rev-parse", "--show-toplevel"),
        "commit": _git(project, "rev-parse", "--verify", "--quiet", "HEAD"),
        "branch": _git(project, "branch", "--show-current"),
    }
    return {name: value.decode("utf-8", "replace").strip() for name, value in found.items() if value is not None}


def write_patches(project: Path, folder: Path) -> None:
    """Write status, differences and the names of untracked files into `folder`. Without a repository, write nothing."""
    root = _git(project, "rev-parse", "--show-toplevel")
    if root is None:
        return
    # From the root, so that the paths are complete and files outside `project` are included.
    top = Path(root.decode("utf-8", "surrogateescape").strip())
    folder.mkdir(parents=True, exist_ok=True)
    for name, arguments in _PATCHES.items():
        if (output := _git(top, *arguments)) is not None:
            (folder / name).write_bytes(output)


def _git(folder: Path, *arguments: str) -> bytes | None:
    # Configured diff programs and colours would make patches that git cannot apply.
    command = ["git", "-C", str(folder), "--no-pager", "-c", "color.ui=false", "-c", "core.quotePath=false", *arguments]
    if arguments[0] == "diff":
        command.append("--no-ext-diff")
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
