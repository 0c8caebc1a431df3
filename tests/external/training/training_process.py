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
from functools import partial
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from anyio.from_thread import start_blocking_portal

from rollyard.records import jsonl
from rollyard.records.script import EXIT_DONE, EXIT_INTERRUPTED, exit_status
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
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # Python 3.11 does not pass sys.path on
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH")
        os.environ.update({} if before is None else {"PYTHONPATH": before})
    process = context.Process(target=_train, args=(settings, at, number, steps))
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
    gc.freeze()  # collections of everything that torch has created take seconds
    torch.set_num_threads(1)
    config = TrainConfig(**settings)
    log = os.open(config.output_dir.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
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


def main() -> None:
    """Train in one of several processes, one run after another: `torchrun -m ... JSON [FOLDER KIND...]`, a list of
    settings; before them the kinds of train_sharded.py.
    """
    torch.set_num_threads(1)
    if sys.argv[2:]:
        train_kinds(Path(sys.argv[2]), sys.argv[3:])
    for given in json.loads(sys.argv[1]):
        config = TrainConfig(**given["settings"])
        if is_main_process(os.environ):
            reached = partial(_signal_at, tuple(given["at"]), signal.SIGKILL)
            exit_status("ng_train", partial(_work, config, reached, 0), debug=True)
        else:
            train(config, None, partial(TrlPolicyTrainer, config, config.output_dir / "trl"), print_line=print)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
