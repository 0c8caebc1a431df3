"""EngineProcess: one run of vLLM under its keeper, from its start to the end of its last process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rollyard.responses_api_models.local_vllm_model.orphaned_processes import FOLDERS, end_orphans, engine_processes
from rollyard.responses_api_models.local_vllm_model.serve_command import shown

GRACE_S = 1.5
"""vLLM ends in 0.6 s when asked; a supervisor gives a server some seconds in all."""
GIVE_UP_S = 30.0
"""A keeper that takes longer than this to end its processes is ended itself."""
_HERE = Path(__file__).parent
_LONGEST_TAIL = 256 * 1024


def make_folder() -> Path:
    """A new engine's own folder: the lock that its keeper holds, the guard that its processes run, vLLM's sockets."""
    folder = Path(tempfile.mkdtemp(prefix=FOLDERS))
    (folder / "alive").touch()
    (folder / "guard").mkdir()
    shutil.copyfile(_HERE / "process_guard.py", folder / "guard" / "sitecustomize.py")
    return folder


class EngineProcess:
    """vLLM running, or just ended."""

    def __init__(self, reaper: asyncio.subprocess.Process, folder: Path, log: Path, offset: int) -> None:
        self.ended = asyncio.create_task(self._follow(reaper))
        """Done at once when vLLM or its keeper has died: with the exit status (negative: the signal)."""
        self.gone = asyncio.create_task(self._wait_and_clean_up(reaper, folder))
        """Done when no process of it is left."""
        self._reaper = reaper
        self._log = log
        self._begin = self._read = offset
        self._rest = ""

    @classmethod
    async def start(cls, command: Sequence[str], environ: Mapping[str, str], folder: Path, log: Path) -> EngineProcess:
        """Run `command`; what it prints is appended to `log`."""
        with log.open("ab") as output:
            output.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} {shown(command)}\n".encode())
            output.flush()
            offset = output.tell()
            reaper = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", str(_HERE / "reaper.py"), str(folder), str(os.getpid()), str(GRACE_S)),
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                env=dict(environ),
                start_new_session=True,  # outlives the kill -9 of this process's group, and cleans up after it
            )
        return cls(reaper, folder, log, offset)

    async def stop(self) -> None:
        """Ask it to end, and wait until nothing of it is left."""
        self._signal(signal.SIGTERM)
        done, _ = await asyncio.wait([self.gone], timeout=GIVE_UP_S)
        if not done:
            self._signal(signal.SIGKILL)
            await self.gone

    def news(self) -> list[str]:
        """Whole lines printed since the last call; a progress bar's states are lines of their own."""
        with self._log.open("rb") as file:
            file.seek(self._read)
            text = file.read(_LONGEST_TAIL)
        self._read += len(text)
        *lines, self._rest = (self._rest + text.decode("utf-8", "replace")).replace("\r", "\n").split("\n")
        return lines

    def printed(self) -> list[str]:
        """The end of what it printed, as lines."""
        with self._log.open("rb") as file:
            file.seek(max(self._begin, file.seek(0, os.SEEK_END) - _LONGEST_TAIL))
            return file.read().decode("utf-8", "replace").replace("\r", "\n").splitlines()

    async def _follow(self, reaper: asyncio.subprocess.Process) -> int:
        assert reaper.stdout is not None
        words = (await reaper.stdout.readline()).split()
        return int(words[1]) if len(words) == 2 else -signal.SIGKILL

    async def _wait_and_clean_up(self, reaper: asyncio.subprocess.Process, folder: Path) -> None:
        await reaper.wait()
        # When the keeper was killed, vLLM's processes end themselves; this waits, and ends those that do not.
        deadline = time.monotonic() + GIVE_UP_S
        while await asyncio.to_thread(engine_processes, folder) and time.monotonic() < deadline:
            await asyncio.to_thread(end_orphans)
            await asyncio.sleep(0.02)
        shutil.rmtree(folder, ignore_errors=True)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._reaper.send_signal(number)
