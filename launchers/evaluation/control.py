"""Controls a running evaluation from another process: `ng_eval status|pause|resume|stop`, and `--detach`.

`find_eval` finds it by its id or folder. Its state is in `eval_state.json`; a request is a file in the same folder,
which the evaluation reads and removes (`ControlRequests.follow`). While its servers run, the state also has the address
of their head, which `ng_status --head ...` shows.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import orjson
from pydantic import ValidationError

from rollyard.launchers.evaluation.eval_state import FINAL, EvalFolder, EvalState, is_alive, read_state
from rollyard.records.errors import OperatorError, RollyardError, RunError
from rollyard.records.jsonl import replace
from rollyard.records.rollout_keys import Shard
from rollyard.records.script import EXIT_DONE, EXIT_FAILED
from rollyard.records.types import Record

RECORDS = Path(".rollyard") / "evals"
"""Folder, in the working directory of `ng_eval`, with one file for each evaluation that was started there."""
POLL_S = 0.1
Action = Literal["pause", "resume", "stop"]


class EvalRecord(Record, extra="ignore"):  # those of earlier versions hold more
    id: str
    folder: str
    shard: str | None = None


@dataclass(frozen=True)
class FoundEval:
    folder: EvalFolder
    id: str | None = None
    """Its id, if it was found by its record."""

    def state(self) -> EvalState | None:
        """The state on disk. That of a killed evaluation says that it is running: check `is_running`."""
        return read_state(self.folder.state)

    def is_running(self) -> bool:
        state = self.state()
        return state is not None and state.state not in FINAL and is_alive(state)

    def is_current(self) -> bool:
        """Return whether the record is that of the last evaluation in the folder, not of an earlier one."""
        state = self.state()
        return state is not None and self.id == state.id

    def request(self, action: Action) -> None:
        """Ask the evaluation to pause, resume or stop. Raises RunError if the folder cannot be written to."""
        try:
            replace(self.folder.request, action.encode())
        except OSError as error:
            raise RunError(f"{self.folder.request} cannot be written: {error.strerror}") from error

    def wait(self, done: Callable[[EvalState], bool]) -> EvalState | None:
        """Wait until `done`, or until the evaluation has ended; return its last state."""
        while self.is_running():
            state = self.state()
            if state is not None and done(state):
                return state
            time.sleep(POLL_S)
        return self.state()


def find_eval(here: Path, name: str | None) -> FoundEval:
    """Return the evaluation with this id or in this folder; without a name, the newest one started from `here`.

    Evaluations that were started from a parent folder are found, too. Raises OperatorError if there is none.
    """
    if name is not None and (found := _in_folder(here / name)) is not None:
        return found
    if name is None and (found := _around(here)) is not None:
        return found
    for base in (here, *here.parents):
        records = [record for record in _records(base) if name is None or record.id == name]
        found_here = [
            FoundEval(EvalFolder(Path(record.folder), Shard.parse(record.shard)), record.id) for record in records
        ]
        if found_here:
            return next((one for one in found_here if one.is_current() and one.is_running()), found_here[0])
    if name is None:
        raise OperatorError(f"no evaluation was started from {here} or a folder above it; pass its id or its folder")
    raise OperatorError(f"no evaluation {name!r} was started from {here} or a folder above it, and it is not a folder")


def _around(here: Path) -> FoundEval | None:
    return next((found for base in (here, *here.parents) if (found := _in_folder(base)) is not None), None)


def _in_folder(path: Path) -> FoundEval | None:
    if not (path / "eval_state.json").is_file():
        return None
    state = read_state(path / "eval_state.json")
    shard = None if state is None else Shard.parse(state.shard)
    return FoundEval(EvalFolder(path if shard is None else path.parents[1], shard))


def _records(base: Path) -> Iterator[EvalRecord]:
    for path in sorted((base / RECORDS).glob("*.json"), reverse=True):
        with suppress(OSError, ValidationError):
            yield EvalRecord.model_validate_json(_read_own(path))


def _read_own(path: Path) -> bytes:
    """Return the contents of a file. Raises PermissionError for another user's, because the folder may be shared."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if found.st_uid not in (os.geteuid(), 0) or not stat.S_ISREG(found.st_mode):
            raise PermissionError(f"{path} belongs to another user")
        return file.read()


def _take(path: Path) -> bytes:
    content = _read_own(path)
    path.unlink()
    return content


class ControlRequests:
    """Requests to pause, resume or end an evaluation. The evaluation waits for changes and acts on them."""

    def __init__(self) -> None:
        self.paused = False
        self.ending = ""
        """Why the evaluation should end: `interrupted` or `stopped`; empty if it should continue."""
        self.now = False
        """End without waiting for episodes in flight."""
        self._changed = asyncio.Event()

    def pause(self) -> None:
        self.paused = True
        self._changed.set()

    def resume(self) -> None:
        self.paused = False
        self._changed.set()

    def interrupt(self) -> None:
        """End the evaluation after the episodes in flight; a second call ends it at once."""
        self.now = bool(self.ending)
        self.ending = self.ending or "interrupted"
        self._changed.set()

    def stop(self) -> None:
        self.ending = self.ending or "stopped"
        self._changed.set()

    async def changed(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    async def pause_for(self, seconds: float) -> None:
        """Wait for `seconds`, or until the evaluation should end."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not self.ending and (left := deadline - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.wait_for(self.changed(), left)
            except TimeoutError:
                return

    @asynccontextmanager
    async def follow(self, folder: EvalFolder, state: EvalState, here: Path) -> AsyncIterator[None]:
        """Record that the evaluation was started in `here`, and act on the requests in its folder."""
        record = EvalRecord(id=state.id, folder=state.folder, shard=state.shard)
        records = here / RECORDS
        records.mkdir(parents=True, exist_ok=True)
        replace(records / f"{time.strftime('%Y%m%d-%H%M%S')}-{state.id}.json", orjson.dumps(record.model_dump()))
        folder.request.unlink(missing_ok=True)  # of an evaluation that was killed
        following = asyncio.create_task(self._follow(folder.request))
        try:
            yield
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _follow(self, path: Path) -> None:
        actions = {b"pause": self.pause, b"resume": self.resume, b"stop": self.stop}
        while True:
            with suppress(OSError):
                if action := actions.get(_take(path)):
                    action()
            await asyncio.sleep(POLL_S)


Started = Callable[[EvalState], None]


def detached(work: Callable[[Started], int], folder: Path) -> int:
    """Run `work` in a new session. Once it calls its argument, print its id, folder and address as one JSON line.

    The output of `work` goes to logs/ng_eval.log in `folder`. Raises OperatorError or RunError if it fails before that.
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork() == 0:
        os.close(reader)
        _become_background()
        os._exit(_work(work, writer, folder))
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    if not answer:
        raise RunError(f"ng_eval ended during its checks; see {folder / 'logs' / 'ng_eval.log'}")
    message = orjson.loads(answer)
    if "error" in message:
        raise (OperatorError if message["refused"] else RunError)(message["error"])
    print(answer.decode(), flush=True)
    return EXIT_DONE


def _become_background() -> None:
    os.setsid()
    if os.fork() > 0:
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)


def _work(work: Callable[[Started], int], writer: int, folder: Path) -> int:
    answered = False

    def started(state: EvalState) -> None:
        nonlocal answered
        log = Path(state.folder) / "logs" / "ng_eval.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        answered = True
        _send(writer, {"id": state.id, "folder": state.folder, "address": state.address})

    try:
        status = work(started)
    except RollyardError as error:
        if not answered:
            _send(writer, {"error": str(error), "refused": isinstance(error, OperatorError)})
        print(f"ng_eval: {error}", file=sys.stderr)
        status = EXIT_FAILED
    except BaseException as error:
        if not answered:
            _send(writer, {"error": f"internal error: {type(error).__name__}: {error}", "refused": False})
        print(f"ng_eval: internal error: {type(error).__name__}: {error}", file=sys.stderr)
        status = EXIT_FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _send(writer: int, message: dict[str, object]) -> None:
    with os.fdopen(writer, "wb") as pipe:
        pipe.write(orjson.dumps(message))
