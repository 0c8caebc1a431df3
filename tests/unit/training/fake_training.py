"""A trainer without a model, and a stack without servers: the training loop between them is the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from anyio.from_thread import start_blocking_portal

from rollyard.records.types import Json
from rollyard.training.groups import EndingRules, GroupMember, Treatment, groups_of, member_of_failure, member_of_row
from rollyard.training.policy_trainer import PolicyTrainer, Save, TrainerHooks
from rollyard.training.run_folder import TrainingFolder
from rollyard.training.step_runner import StackParts
from rollyard.training.train import MakeTrainer, TrainingEnd, run_training
from rollyard.training.train_config import TrainConfig
from rollyard.training.training_sequence import SequenceRules
from rollyard.training.transfer_publisher import TransferMethod, WeightSender
from rollyard.training.update import Batch, TokenPair, TokenPairs
from rollyard.training.weight_publisher import PublishedWeights
from tests.unit.training.recorded_turns import row, turn


class CountingTrainer:
    """Its weights are the number of updates."""

    is_main = True
    has_whole_model = True
    has_gpu = False

    def __init__(self, hooks: TrainerHooks, max_steps: int) -> None:
        self._hooks = hooks
        self._max_steps = max_steps
        self.step = 0
        self.metrics: Mapping[str, float] = {"loss": 0.5, "grad_norm": 1.0, "learning_rate": 1e-6}
        pair = TokenPair(sequence=0, position=0, engine=-1.0, trainer=-1.5, entropy=0.7, clipped=False)
        self.token_pairs: TokenPairs | None = TokenPairs(1, 0, (0,) * 17, (pair,), (pair,))

    def share(self, text: str | None) -> str | None:
        return text

    def run(self, checkpoint: Path | None) -> None:
        if checkpoint is not None:
            self.step = orjson.loads((checkpoint / "trainer_state.json").read_bytes())["step"]
        self._hooks.started()
        while self._hooks.next_update(self.step + 1) is not None:
            self.step += 1
            self._hooks.updated()
            if self.step == self._max_steps:
                break

    def weights(self) -> Save:
        return lambda folder: None

    def save_state(self, folder: Path) -> None:
        (folder / "trainer_state.json").write_bytes(orjson.dumps({"step": self.step}))

    def log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[0.0] * (len(sequence) - 1) for sequence in sequences]

    def sender(self, method: TransferMethod) -> WeightSender:
        raise AssertionError("it has no GPU")

    def wait(self) -> None:
        pass


class FakeStack:
    """Records what the loop asks for in `calls`. A function in `on` is called, and awaited, before it is done."""

    def __init__(self, *, batches: int = 100) -> None:
        self.calls: list[str] = []
        self.on: dict[str, Callable[[], Any]] = {}
        self.starts_at: list[Mapping[str, int]] = []
        self.is_closed = False
        self.repaired: Callable[[], PublishedWeights | None] = lambda: None
        self.warnings: tuple[str, ...] = ()
        """What the model server says about every version."""
        self._batches = batches
        self._version = ""
        self._index = 0

    def parts(self, position: Mapping[str, int], trainer: PolicyTrainer) -> StackParts:
        self.starts_at.append(position)
        self._index = position.get("index", 0)
        return StackParts(self, self, self._evaluate, self._parity, self._close)

    async def next_batch(self, step: int) -> Batch | None:
        await self._called(f"play {step} with {self._version}")
        if self._index == self._batches:
            return None
        self._index += 1
        return Batch(step, tuple(groups_of(_members(self._version), scale="group")), {"index": self._index})

    async def publish(self, version: str, save: Save) -> PublishedWeights:
        await self._called(f"publish {version}")
        self._version = version
        return PublishedWeights(version, 0.0, self.warnings)

    async def repair(self) -> PublishedWeights | None:
        return self.repaired()

    async def _evaluate(self, step: int) -> Mapping[str, float]:
        await self._called(f"evaluate {step}")
        return {"reward": 0.25}

    async def _parity(self, step: int, version: str, sequences: Sequence[Sequence[int]]) -> Mapping[str, float]:
        await self._called(f"parity {version}")
        return {"mean": 1e-6, "max": 1e-5}

    async def _close(self) -> None:
        self.is_closed = True

    async def _called(self, what: str) -> None:
        self.calls.append(what)
        if what in self.on:
            result = self.on[what]()
            if asyncio.iscoroutine(result):
                await result


def fake_config(root: Path, **settings: Any) -> TrainConfig:
    settings = {"max_steps": 3, "checkpoint_interval": 0, "loggers": (), "evaluation": {"interval": 2}, **settings}
    return TrainConfig(model="m", output_dir=root / "run", **settings)


def run_once(config: TrainConfig, stack: FakeStack, lines: list[str] | None = None) -> TrainingEnd:
    lines = [] if lines is None else lines
    with (
        TrainingFolder.opened(config, command=[], project=config.output_dir, print_line=lines.append) as folder,
        start_blocking_portal() as portal,
    ):
        make: MakeTrainer = lambda hooks: CountingTrainer(hooks, config.max_steps)  # noqa: E731
        return run_training(folder, portal, stack.parts, make, {}, print_line=lines.append)


def json_lines(path: Path) -> list[Json]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def _members(version: str) -> list[GroupMember]:
    def member(task: str, repeat: int, reward: float) -> GroupMember:
        rollout = row(turn([1, 2], [3 + repeat], policy_version=version), reward=reward, _ng_rollout_index=repeat)
        return member_of_row(rollout, task, SequenceRules(), EndingRules())

    failed = member_of_failure("a", 2, "session_lost", Treatment.LEFT_OUT)
    return [member("a", 0, 0.0), member("a", 1, 1.0), failed, member("b", 0, 1.0), member("b", 1, 1.0)]
