"""WatchControl: lets `ng_eval status|pause|resume|stop` reach a watch of checkpoints and its current evaluation."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from threading import Event

from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.eval_folder import EvalFolder
from rollyard.launchers.evaluation.pipeline.control.control_requests import ControlRequests
from rollyard.launchers.evaluation.pipeline.control.control_server import ControlServer
from rollyard.launchers.evaluation.pipeline.eval_lock import locked
from rollyard.launchers.evaluation.pipeline.eval_state import FINAL, EvalState, new_state, read_state
from rollyard.launchers.evaluation.pipeline.tracker import EvalObserver, EvalTracker
from rollyard.records.errors import RollyardError

POLL_S = 0.5


class WatchControl:
    """A watch holds the lock of its folder, and shares its requests with its evaluations, which run one at a time."""

    def __init__(self, folder: EvalFolder, tracker: EvalTracker, requests: ControlRequests) -> None:
        self.requests = requests
        self.stopped = Event()
        """Set when the watch shall end."""
        self._folder = folder
        self._tracker = tracker
        self._current: tuple[str, EvalFolder] | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(
        cls, output_dir: Path, here: Path, observer: EvalObserver, on_start: Callable[[WatchControl, EvalState], None]
    ) -> AsyncIterator[WatchControl]:
        """Lock the folder of a watch and make it controllable. Raises RunError if another one is running in it."""
        folder, requests = EvalFolder(output_dir), ControlRequests()
        with locked(folder):
            state = new_state(secrets.token_hex(4), folder.root, None, 1)
            tracker = EvalTracker(state.model_copy(update={"stage": "watch"}), folder.state, observer)
            control = cls(folder, tracker, requests)
            async with ControlServer(requests, lambda: tracker.state, folder, here) as server:
                tracker.update(address=server.address)
                on_start(control, tracker.state)
                following = asyncio.create_task(control._follow())
                message = ""
                try:
                    yield control
                except RollyardError as error:
                    message = str(error).partition("\n")[0]
                    raise
                finally:
                    following.cancel()
                    await asyncio.gather(following, return_exceptions=True)
                    ended = "failed" if message else requests.ending or "complete"
                    tracker.update(state=ended, stage="done", address=None, message=message)

    def evaluates(self, config: EvalConfig) -> None:
        """Show the state of this evaluation as that of the watch."""
        self._current = config.output_dir.name, EvalFolder(config.output_dir, config.worker)

    async def _follow(self) -> None:
        """Keep the watch's state current."""
        while True:
            if self.requests.ending:
                self.stopped.set()
            self._tracker.update(**self._state())
            await asyncio.sleep(POLL_S)

    def _state(self) -> dict[str, object]:
        name, folder = self._current or ("", self._folder)
        found = read_state(folder.state) if name else None
        if found is None or found.state in FINAL:
            state = "draining" if self.requests.ending else "paused" if self.requests.paused else "running"
            return {"state": state, "stage": "watch", "message": ""}
        counts = {"attempt": found.attempt, "max_attempts": found.max_attempts, "message": found.message}
        counts |= {"measured": found.measured, "expected": found.expected, "failed": found.failed}
        return {"state": found.state, "stage": f"{name}: {found.stage}", **counts}
