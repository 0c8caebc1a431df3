"""SimLoop: an event loop with a virtual clock, whose callbacks belong to simulated processes.

The callbacks of one process run in the order in which asyncio would run them. Which process runs next is drawn, and
time only passes when no process has anything to do. So one seed is one order of events, whatever the machine does.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any

PROCESS: contextvars.ContextVar[str] = contextvars.ContextVar("process", default="world")
"""Name of the simulated process that the running code belongs to."""
START = 1_700_000_000.0
"""What the simulated calendar shows at the start, in Unix seconds."""


class SimLoop(asyncio.BaseEventLoop):
    def __init__(self, rng: random.Random, on_step: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._rng = rng
        self._now = 0.0
        self._queues: dict[str, deque[asyncio.Handle]] = {}
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._dead: set[str] = set()
        self._frozen: dict[str, deque[asyncio.Handle]] = {}
        self.graveyard: list[Any] = []
        self._number = 0
        self._on_step = on_step
        self.steps = 0
        self.errors: list[str] = []
        self.set_exception_handler(self._note)
        self.tasks: list[asyncio.Task[Any]] = []
        """All tasks: a killed process must not run its `finally` blocks, as it would if its tasks were collected."""
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self._now

    def kill(self, process: str) -> None:
        """End a process as `kill -9` does: nothing of it runs again, not even its `finally` blocks."""
        self._dead.add(process)
        self.graveyard += [self._queues.pop(process, None), self._frozen.pop(process, None)]

    def drop(self) -> None:
        self._timers.clear()
        self._queues.clear()
        self._frozen.clear()
        self.graveyard.clear()
        self.tasks.clear()
        self._ready.clear()

    def freeze(self, process: str) -> None:
        """Stop a process as SIGSTOP does; what it has to do waits for `thaw`."""
        if process not in self._dead:
            self._frozen[process] = self._queues.pop(process, deque())

    def thaw(self, process: str) -> None:
        if queue := self._frozen.pop(process, None):
            self._queues[process] = queue

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Run the function at a drawn time; what it returns arrives as from a thread."""
        future = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self._rng.expovariate(500.0), work)
        return future

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._number += 1
        heapq.heappush(self._timers, (when, self._number, handle))
        return handle

    def _enqueue(self, handle: asyncio.Handle) -> None:
        process = handle._context.get(PROCESS, "world")
        if process in self._frozen:
            self._frozen[process].append(handle)
        elif process not in self._dead:
            self._queues.setdefault(process, deque()).append(handle)

    def _run_once(self) -> None:
        while self._timers and self._timers[0][0] <= self._now:
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled():
                self._enqueue(timer)
        names = list(self._queues)
        if not names:
            while self._timers and self._timers[0][2].cancelled():
                heapq.heappop(self._timers)
            if not self._timers:
                raise RuntimeError("nothing is left to run, and nobody will wake the tasks that wait")
            self._now = self._timers[0][0]
            return
        process = names[self._rng.randrange(len(names))] if len(names) > 1 else names[0]
        queue = self._queues[process]
        handle = queue.popleft()
        if not queue:
            del self._queues[process]
        if not handle.cancelled():
            self.steps += 1
            handle._run()
            self._on_step()

    def _make_task(self, loop: Any, work: Any, *, context: contextvars.Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
        self.tasks.append(task)
        return task

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _process_events(self, event_list: Any) -> None:
        pass

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if PROCESS.get() not in self._dead:
            self.errors.append(f"{PROCESS.get()}: {context.get('message')} {context.get('exception')!r}")
