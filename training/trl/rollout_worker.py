"""The rollout worker and the weight transfer of TRL's AsyncGRPOTrainer, on a running stack."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from huggingface_hub import save_torch_state_dict

from rollyard.records.errors import RunError
from rollyard.services.datasets.mixture import DatasetTasks, Rollout
from rollyard.training.groups import RolloutGroup, Scale, groups_of
from rollyard.training.run_folder import updates_of, version_names
from rollyard.training.trl.episodes import Episodes, PlaySettings
from rollyard.training.trl.stack_session import Publish, StackSession

if TYPE_CHECKING:
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample


_PAUSE_S = 0.05


@dataclass(eq=False)
class StackRolloutWorker:
    """Plays groups of episodes without end, and hands their sequences to the trainer as TRL's RolloutSamples.

    A rollout of several sequences becomes several samples with the same advantage. Groups that cannot be learned from
    are not handed over, but counted.
    """

    session: StackSession
    tasks: DatasetTasks
    """The dataset, played in its order again and again."""
    folder: Path
    """Where the rollouts are stored."""
    _: KW_ONLY
    group_size: int
    """Rollouts per task."""
    temperature: float
    """That of AsyncGRPOConfig."""
    scale: Scale = "group"
    settings: PlaySettings = field(default_factory=PlaySettings)
    queue_size: int = 1024
    """No rollouts are played while so many samples wait for the trainer."""
    rollout_buffer: queue.Queue[RolloutSample] = field(default_factory=queue.Queue, init=False)
    """The samples that wait for the trainer."""
    metrics_queue: queue.Queue[dict[str, float]] = field(default_factory=queue.Queue, init=False)
    """Figures of each group, which the trainer logs."""

    def __post_init__(self) -> None:
        self._version = 0
        self._running: Future[None] | None = None
        self._last_sign_of_life = time.monotonic()

    def start(self) -> None:
        """Start to play."""
        self._last_sign_of_life = time.monotonic()
        self._running = self.session.submit(self._work())

    def stop(self) -> None:
        """Stop. Episodes in flight are abandoned."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            with contextlib.suppress(BaseException):
                running.result()

    def update_model_version(self, model_version: int) -> None:
        """Note which version the engines have, for tokens that do not record theirs."""
        self._version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Raise RunError if the worker has failed, or if its event loop has not responded for `stale_after_s` seconds.

        A long episode is no failure: each has a timeout of its own.
        """
        if self._running is not None and self._running.done():
            error = self._running.exception()
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise RunError(f"the rollout worker has stopped: {error}") from error
        if (age := time.monotonic() - self._last_sign_of_life) > stale_after_s:
            raise RunError(f"the rollout worker has not responded for {age:.0f} s, more than {stale_after_s:g} s")

    async def _work(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / time.strftime("rollouts_%Y%m%d-%H%M%S.jsonl")).open("ab") as file:

            def record(line: bytes) -> None:
                file.write(line + b"\n")

            episodes = Episodes(self.session.stack, self.settings, record)
            # Enough groups to keep all slots busy while the slowest episode of a group ends.
            slots = asyncio.Semaphore(max(2, 2 * self.settings.parallel // self.group_size))
            async with asyncio.TaskGroup() as running:
                running.create_task(self._breathe())
                for number, rollouts in enumerate(self._groups()):
                    await slots.acquire()
                    # No event: the trainer's thread empties the queue.
                    while self.rollout_buffer.qsize() >= self.queue_size:  # noqa: ASYNC110
                        await asyncio.sleep(_PAUSE_S)
                    group = running.create_task(self._play(episodes, number, rollouts))
                    group.add_done_callback(lambda _: slots.release())

    async def _breathe(self) -> None:
        while True:
            self._last_sign_of_life = time.monotonic()
            await asyncio.sleep(_PAUSE_S)

    def _groups(self) -> Iterator[list[Rollout]]:
        """Yield the rollouts of each task, epoch after epoch. Task indices continue, so that they are unique."""
        number = 0
        while True:
            for rollout in self.tasks.rollouts(1):
                repeats = range(self.group_size)
                yield [Rollout(number, repeat, rollout.agent, rollout.row) for repeat in repeats]
                number += 1

    async def _play(self, episodes: Episodes, number: int, rollouts: Sequence[Rollout]) -> None:
        started = self._version
        playing = (episodes.play(rollout, {"temperature": self.temperature}) for rollout in rollouts)
        members = await asyncio.gather(*playing)
        if episodes.ended >= max(20, self.group_size):
            episodes.check_failure_rate()
        [group] = groups_of(members, scale=self.scale)
        self.metrics_queue.put(_figures(group))
        if group.skipped is None:
            for sample in samples_of(group, number, started):
                self.rollout_buffer.put(sample)


def samples_of(group: RolloutGroup, number: int, started: int) -> Iterator[RolloutSample]:
    """Yield the sequences of a group as TRL's samples. `number`: the group's. `started`: number of the version that the
    engines had when the group was started, for tokens that do not record theirs.
    """
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample  # warns that it is experimental

    rewards = [member.reward for member in group.members if member.counts]
    mean = sum(rewards) / len(rewards)
    for member, advantage in zip(group.members, group.advantages, strict=True):
        for sequence in member.sequences if member.has_loss else ():
            if not sequence.loss_tokens:
                continue
            pairs = zip(sequence.versions, sequence.loss_mask, strict=True)
            prompt = len(sequence.prompt_ids)
            yield RolloutSample(
                prompt=[],  # TRL only prints the texts
                completion=[],
                input_ids=np.asarray(sequence.prompt_ids + sequence.completion_ids, dtype=np.int64),
                completion_mask=np.asarray([0] * prompt + sequence.loss_mask, dtype=np.int64),
                old_log_probs=np.asarray([0.0] * prompt + sequence.loss_log_probs, dtype=np.float32),
                advantage=advantage,
                model_version=min(
                    started if name is None else updates_of(name) for name, has_loss in pairs if has_loss
                ),
                group_id=number,
                metrics={"rollout/group_reward": mean, "reward": member.reward},
                enqueued_at=time.time(),
            )


def _figures(group: RolloutGroup) -> dict[str, float]:
    count = len(group.members)
    figures = {
        "rollout/left_out_frac": sum(not member.counts for member in group.members) / count,
        "rollout/skipped_groups_total": float(group.skipped is not None),
    }
    if group.skipped is not None:
        figures[f"rollout/{group.skipped}_groups_total"] = 1.0
    return figures


class StackWeightTransfer:
    """Saves the weights that the trainer streams as a version, and loads it into all engines. Its number, 12 for
    step_000012, is the trainer's `model_version` once it is loaded: the initial weights are 1.

    The model server pauses the engines while they load, and resumes them if the trainer disappears meanwhile. `pause`
    and `resume` therefore do nothing.
    """

    def __init__(self, session: StackSession, folder: Path, model_folder: Path, *, timeout_s: float = 600.0) -> None:
        """`folder`: where the versions are stored, for the engines to read. `model_folder`: the initial model, whose
        config and tokenizer are copied to each version.
        """
        from transformers import AutoConfig, AutoTokenizer, GenerationConfig

        self._publish: Publish = session.publisher(folder, timeout_s=timeout_s)
        self._config: Any = AutoConfig.from_pretrained(model_folder)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model_folder)
        has_generation = (model_folder / "generation_config.json").is_file()
        self._generation: Any = GenerationConfig.from_pretrained(model_folder) if has_generation else None
        self._name = version_names(folder)
        self._sent = 0

    def init_weight_transfer(self) -> None:
        """Do nothing: there is no group of processes to set up."""

    def pause(self) -> None:
        """Do nothing: the model server pauses the engines."""

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Load the weights into the engines. Raises RunError if they refuse them or do not load them in time."""
        # Also the processes that share the weights wait for the end of the iterator.
        state = {name: tensor.detach().cpu() for name, tensor in iterator}
        if not state:
            raise RunError("the trainer sent no weights: all parameters are frozen")

        def save(folder: Path) -> None:
            save_torch_state_dict(state, folder)
            for part in (self._config, self._tokenizer, self._generation):
                if part is not None:
                    part.save_pretrained(folder)

        self._publish(self._name(self._sent + 1), save)
        self._sent += 1

    def resume(self) -> None:
        """Do nothing: the model server resumes the engines."""

    def destroy(self) -> None:
        """Do nothing: the session is closed by the program that opened it."""
