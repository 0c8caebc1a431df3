"""StackBatchSource: plays the episodes of a training run on a stack and returns them as batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from rollyard.records.errors import RunError
from rollyard.services.datasets.tasks import Tasks
from rollyard.training.batch import Batch, BatchSource
from rollyard.training.play.step_player import PlayedStep, StepPlayer
from rollyard.training.play.task_order import OrderPosition, TaskOrder
from rollyard.training.run_paths import TrainingPaths
from rollyard.training.stack.training_stack import TrainingStack
from rollyard.training.train_config import TrainConfig


class StackBatchSource(BatchSource):
    """The batches of consecutive steps.

    When the trainer asks for a step, steps up to `max_staleness` later may be played, one after the other, while it
    trains. Their rollouts are therefore at most `max_staleness` updates old when they are used.
    """

    def __init__(
        self,
        stack: TrainingStack,
        tasks: Tasks,
        config: TrainConfig,
        paths: TrainingPaths,
        position: Mapping[str, int],
        *,
        seeded: bool = False,
        print_line: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`tasks`: the dataset, with `limit` applied. `position`: `Batch.position` of the last step that was trained
        on; empty at the start of a run. `seeded`: send a sampling seed with each rollout, so that engines whose
        sampling is deterministic play the same episodes in every run; model servers with trainer endpoints refuse it if
        an engine runs on a CPU. `print_line` receives lines for the user.

        Raises RunError if the position does not belong to the dataset.
        """
        order = TaskOrder(
            tasks.count,
            seed=config.seed,
            shuffle=config.shuffle,
            epochs=None if config.max_steps else config.epochs,
        )
        self._position = order.position(position)
        self._player = StepPlayer(stack, tasks, config, paths, order, seeded=seeded, print_line=print_line)
        self._ahead = config.max_staleness
        self._last = config.max_steps
        self._requested = 0
        self._request = asyncio.Event()
        self._played: asyncio.Queue[PlayedStep | Exception | None] = asyncio.Queue()
        self._producer: asyncio.Task[None] | None = None

    async def next_batch(self, step: int) -> Batch | None:
        """Return the batch of a step, which is the one after the step of the previous call; None after the last one.

        Raises RunError as described in `BatchSource`, and OperatorError if the stack does not have the agents of the
        tasks. The step can then be requested again, as it can be after the call was cancelled.
        """
        started = time.monotonic()
        if self._producer is not None and self._producer.cancelling():
            await self.close()
        self._requested = step
        if self._producer is None:
            self._played = asyncio.Queue()
            self._producer = asyncio.create_task(self._produce(step, self._position, self._played))
        self._request.set()
        try:
            played = await self._played.get()
        except asyncio.CancelledError:
            # Not awaited: whoever cancels this call may cancel every `await` in it. `close` waits for the end.
            self._producer.cancel()
            raise
        if not isinstance(played, PlayedStep):
            await self.close()
            if played is not None:
                raise played
            return None
        if played.batch.step != step:
            raise ValueError(
                f"step {step} was requested after step {played.batch.step - 1}; expected consecutive steps"
            )
        self._position = played.position
        return replace(played.batch, wait_s=time.monotonic() - started)

    async def close(self) -> None:
        """Stop playing. Episodes in flight are abandoned, and those that have ended stay on disk."""
        producer, self._producer = self._producer, None
        if producer is not None:
            if not producer.cancelling():
                producer.cancel()
            await asyncio.gather(producer, return_exceptions=True)

    async def _produce(
        self, step: int, position: OrderPosition, played_steps: asyncio.Queue[PlayedStep | Exception | None]
    ) -> None:
        while not self._last or step <= self._last:
            while step > self._requested + self._ahead:
                self._request.clear()
                await self._request.wait()
            try:
                played = await self._player.play(step, position)
            except Exception as error:
                played_steps.put_nowait(error)
                return
            except asyncio.CancelledError:
                played_steps.put_nowait(RunError(f"step {step} was stopped while it was played"))
                raise
            played_steps.put_nowait(played)
            if played is None:
                return
            position = played.position
            step += 1
        played_steps.put_nowait(None)
