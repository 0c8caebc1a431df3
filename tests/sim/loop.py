"""SimLoop: an event loop with a virtual clock, whose callbacks belong to simulated processes.

The callbacks of one process run in the order in which asyncio would run them. Which process runs next is drawn, and
time only passes when no process has anything to do. So one seed is one order of events, whatever the machine does.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from typing import Any

PROCESS: contextvars.ContextVar[str] = contextvars.ContextVar("process", default="world")
"""Name of the simulated process that the running code belongs to."""
MOST_IN_CALL = 100_000
"""Steps of others while one process waits in a call. Most seeds have fewer in all."""
START = 1_700_000_000.0
"""What the simulated calendar shows at the start, in Unix seconds."""


class Killed(BaseException):
    """Unwinds the code of a simulated process that has just died in the middle of a call."""


class SimTask(asyncio.Task[Any]):
    """A task whose hash is its number, so that the order of a set of tasks does not depend on memory addresses."""

    def __init__(self, number: int, process: str, work: Any, **more: Any) -> None:
        self.number = number  # first, because a task adds itself to a set while it is made
        self.process = process
        self.of = work.__qualname__
        super().__init__(work, **more)

    def __hash__(self) -> int:
        return self.number


class SimLoop(asyncio.BaseEventLoop):
    def __init__(self, rng: random.Random, on_step: Callable[[], None] = lambda: None) -> None:
        """`on_step` is called after each callback; what it raises ends the run."""
        super().__init__()
        self._rng = rng
        self._now = 0.0
        self._queues: dict[str, deque[asyncio.Handle]] = {}
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._number = 0
        self._dead: set[str] = set()
        self._frozen: dict[str, deque[asyncio.Handle]] = {}
        self._stopped: set[str] = set()
        """Those that are frozen until `thaw`, and not only for a call."""
        self._waiting = ""
        """The process that waits in a call, while others run."""
        self._on_step = on_step
        self.steps = 0
        self.errors: list[str] = []
        """Exceptions that nobody has handled."""
        self._kept: list[Any] = []
        """All tasks, and what dead processes had to do: if they were collected, their `finally` blocks would run."""
        self.set_exception_handler(self._note)
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self._now

    def spawn(self, process: str, work: Any) -> asyncio.Task[Any]:
        """Run a coroutine as a part of that process."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        return self.create_task(work, context=context)

    def kill(self, process: str) -> None:
        """End a process as `kill -9` does: nothing of it runs again, not even its `finally` blocks."""
        self._dead.add(process)
        self._stopped.discard(process)
        self._kept += [self._queues.pop(process, None), self._frozen.pop(process, None)]

    def is_dead(self, process: str) -> bool:
        return process in self._dead

    def freeze(self, process: str) -> None:
        """Stop a process as SIGSTOP does; what it has to do waits for `thaw`."""
        if process not in self._dead:
            self._stopped.add(process)
            self._hold(process)

    def thaw(self, process: str) -> None:
        self._stopped.discard(process)
        self._release(process)

    def _hold(self, process: str) -> None:
        if process not in self._frozen:
            self._frozen[process] = self._queues.pop(process, deque())

    def _release(self, process: str) -> None:
        is_held = process == self._waiting or process in self._stopped
        if not is_held and (queue := self._frozen.pop(process, None)):
            self._queues[process] = queue

    def wait_in_call(self, process: str, seconds: float) -> None:
        """Let other processes run before the caller, a call of this process, goes on. Only one waits at a time."""
        if self._waiting or process in self._frozen:
            return
        until, task, most = self._now + seconds, asyncio.current_task(self), self.steps + MOST_IN_CALL
        self._hold(process)
        self._waiting = process
        if task is not None:
            asyncio.tasks._leave_task(self, task)
        try:
            while (self._queues or self._next_timer() <= until or process in self._stopped) and not self.errors:
                self._run_once()
                if self.steps > most:
                    self.errors.append(f"others have not ended after {MOST_IN_CALL:,} steps while {process} waited")
        finally:
            if task is not None:
                asyncio.tasks._enter_task(self, task)
            self._waiting = ""
            self._release(process)
        self._now = max(self._now, until)

    def unhandled(self) -> list[str]:
        """What tasks of living processes have raised, for which nobody has asked."""
        tasks = (one for one in self._kept if isinstance(one, SimTask) and one.process not in self._dead)
        return [
            f"{task.process}: {task.of} raised {task.exception()!r}"
            for task in tasks
            if task.done() and task._log_traceback
        ]

    def end(self) -> None:
        """Forget everything that is left to do, and end code that wants to do more while it is collected."""
        self.set_exception_handler(lambda loop, context: None)
        loop: Any = self
        loop.call_soon = loop.call_at = loop.create_task = _killed
        for kept in self._kept:
            if isinstance(kept, SimTask):
                kept._log_destroy_pending = False  # type: ignore[attr-defined]
        self._timers.clear()
        self._queues.clear()
        self._frozen.clear()
        self._kept.clear()

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """Run the function at a drawn time; what it returns arrives as from a thread."""
        future = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Killed:
                return
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self._rng.expovariate(500.0), work)
        return future

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._number += 1
        heapq.heappush(self._timers, (when, self._number, handle))
        return handle

    def _enqueue(self, handle: Any) -> None:
        process = handle._context.get(PROCESS, "world")
        if process in self._frozen:
            self._frozen[process].append(handle)
        elif process in self._queues:
            self._queues[process].append(handle)
        elif process not in self._dead:
            self._queues[process] = deque((handle,))

    def _run_once(self) -> None:
        timers, queues = self._timers, self._queues
        while timers and timers[0][0] <= self._now:
            timer = heapq.heappop(timers)[2]
            if not timer.cancelled():
                self._enqueue(timer)
        if not queues:
            if (then := self._next_timer()) == math.inf:
                raise RuntimeError("nothing is left to run, and nobody will wake the tasks that wait")
            self._now = then
            return
        process = next(iter(queues)) if len(queues) == 1 else self._rng.choice(list(queues))
        queue = queues[process]
        handle = queue.popleft()
        if not queue:
            del queues[process]
        if not handle.cancelled():
            self.steps += 1
            handle._run()
            if not self._waiting:  # else what it raises would be raised within the call
                self._on_step()

    def _next_timer(self) -> float:
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else math.inf

    def _make_task(self, loop: Any, work: Any, *, context: contextvars.Context | None = None) -> asyncio.Task[Any]:
        process = PROCESS.get() if context is None else context.get(PROCESS, "world")
        task = SimTask(len(self._kept), process, work, loop=loop, context=context)
        self._kept.append(task)
        return task

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _process_events(self, event_list: Any) -> None:
        pass

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(f"{context.get('message')} {context.get('exception')!r}")


def _killed(*arguments: Any, **named: Any) -> Any:
    raise Killed
