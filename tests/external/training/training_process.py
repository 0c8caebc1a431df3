"""Trainings in processes of their own, which tests kill at chosen points.

The processes are forked from a server that has imported torch and TRL already, which takes most of a start.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from anyio.from_thread import start_blocking_portal

from rollyard.records import jsonl
from rollyard.records.script import EXIT_DONE, EXIT_INTERRUPTED, exit_status
from rollyard.records.types import Json
from rollyard.training import checkpoints
from rollyard.training.policy_trainer import PolicyTrainer, TrainerHooks
from rollyard.training.run_folder import TrainingFolder
from rollyard.training.step_runner import StackParts
from rollyard.training.train import is_main_process, run_training, train
from rollyard.training.train_config import TrainConfig
from rollyard.training.trl.policy_trainer import TrlPolicyTrainer
from tests.external.training.sampled_stack import Reached, SampledStack
from tests.external.training.train_command import training_s
from tests.external.training.train_sharded import train_kinds
from tests.support.processes import free_port


def start_training(
    settings: dict[str, Any],
    at: tuple[str, int] | None = None,
    *,
    number: signal.Signals = signal.SIGKILL,
    steps: int = 0,
) -> BaseProcess:
    """Start a training. `at`: the process sends itself the signal at this point of this step. `steps`: number of
    batches in the data; 0: without end.
    """
    return _started(_train, settings, at, number, steps)


def start_two(log: Path, runs: list[Json], folder: Path, kinds: list[str]) -> list[BaseProcess]:
    """Start two processes that train together, one run after another: first the kinds of train_sharded.py, then `runs`,
    of each of which the first process may end itself (`at`).
    """
    port = free_port()
    return [_started(_train_together, rank, port, log, runs, folder, kinds) for rank in (0, 1)]


def _started(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # Python 3.11 does not pass sys.path on
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH")
        os.environ.update({} if before is None else {"PYTHONPATH": before})
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


def finished(process: BaseProcess) -> int | None:
    """Wait for a process and return its exit status; negative: the signal that ended it."""
    process.join(training_s())
    if process.is_alive():
        process.kill()
    return process.exitcode


def curve(folder: Path) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        metrics = {name: value for name, value in entry.items() if name.startswith(("train/", "eval/"))}
        repeated = found.setdefault(entry["step"], {}).keys() & metrics.keys()
        assert not repeated, f"step {entry['step']} has {repeated} twice"
        found[entry["step"]] |= metrics
    return found


def _train(settings: dict[str, Any], at: tuple[str, int] | None, number: signal.Signals, steps: int) -> None:
    config = TrainConfig(**settings)
    _set_up(config.output_dir.with_suffix(".log"))
    raise SystemExit(
        exit_status("ng_train", partial(_work, config, partial(_signal_at, at, number), steps), debug=True)
    )


def _work(config: TrainConfig, reached: Reached, steps: int) -> int:
    _watch_commit(reached)
    print_line = partial(print, flush=True)
    with (
        TrainingFolder.opened(config, command=["test"], project=Path.cwd(), print_line=print_line) as folder,
        start_blocking_portal() as portal,
    ):

        def make_parts(position: Any, trainer: PolicyTrainer) -> StackParts:
            stack = SampledStack(folder.paths, position, reached, steps=steps)
            return StackParts(stack, stack, stack.evaluate)

        def make_trainer(hooks: TrainerHooks) -> PolicyTrainer:
            return _Watched(config, folder.paths.root / "trl", hooks, reached)

        end = run_training(folder, portal, make_parts, make_trainer, {}, print_line=print_line)
    return EXIT_DONE if end == "complete" else EXIT_INTERRUPTED


def _signal_at(at: tuple[str, int] | None, number: signal.Signals, name: str, step: int) -> None:
    if at == (name, step):
        os.kill(os.getpid(), number)


class _Watched(TrlPolicyTrainer):
    def __init__(self, config: TrainConfig, folder: Path, hooks: TrainerHooks, reached: Reached) -> None:
        super().__init__(config, folder, hooks)
        self._reached = reached
        optimizer_step = torch.optim.AdamW.step

        def step(optimizer: Any, *arguments: Any, **options: Any) -> Any:
            reached("optimizing", self.step + 1)
            return optimizer_step(optimizer, *arguments, **options)

        torch.optim.AdamW.step = step

    def save_state(self, folder: Path) -> None:
        super().save_state(folder)
        (folder / "optimizer.pt").write_bytes((folder / "optimizer.pt").read_bytes()[:100])  # half written
        self._reached("saving", self.step)
        super().save_state(folder)


def _watch_commit(reached: Reached) -> None:
    """Tell when a checkpoint has its name, but latest.json does not name it yet."""
    replace = jsonl.replace

    def watched(path: Path, data: bytes) -> None:
        reached("committed", json.loads(data)["step"])
        replace(path, data)

    vars(checkpoints)["replace"] = watched


def _set_up(log: Path) -> None:
    gc.freeze()  # collections of everything that torch has created take seconds
    torch.set_num_threads(1)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _train_together(rank: int, port: int, log: Path, runs: list[Json], folder: Path, kinds: list[str]) -> None:
    _set_up(log)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}  # as torchrun sets them
    os.environ.update({name: str(value) for name, value in place.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), ACCELERATE_USE_CPU="true", OMP_NUM_THREADS="1")
    train_kinds(folder, kinds)
    for given in runs:
        config = TrainConfig(**given["settings"])
        if is_main_process(os.environ):
            reached = partial(_signal_at, tuple(given["at"]), signal.SIGKILL)
            exit_status("ng_train", partial(_work, config, reached, 0), debug=True)
        else:
            train(config, None, partial(TrlPolicyTrainer, config, config.output_dir / "trl"), print_line=print)
    torch.distributed.destroy_process_group()
