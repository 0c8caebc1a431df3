"""The folder of an evaluation: its files, state and lock, and how other processes find, pause and stop the evaluation.

`find_eval` finds one, `ControlRequests` follows the requests in its folder, `detached` runs it in the background, and
`end_leftovers` kills the processes that a killed one has left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import orjson
from pydantic import ValidationError

from rollyard.records.errors import OperatorError, RollyardError, RunError
from rollyard.records.jsonl import replace
from rollyard.records.process_group import start_ticks
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.rollout_keys import Shard
from rollyard.records.script import EXIT_DONE, EXIT_FAILED
from rollyard.records.types import CollectionStatus, Record


@dataclass(frozen=True)
class EvalFolder:
    root: Path
    shard: Shard | None = None
    """The share of this job, if several jobs collect into the folder."""

    @property
    def own(self) -> Path:
        """The folder for the logs and the state of this job."""
        shard = self.shard
        return self.root if shard is None else self.root / "shards" / f"{shard.number}-of-{shard.count}"

    @property
    def rollouts(self) -> RolloutPaths:
        return RolloutPaths(self.root / "rollouts.jsonl")

    @property
    def collected(self) -> RolloutPaths:
        """The files that this job writes: those of the rollouts, or of its share of them."""
        output = self.rollouts.output
        return self.rollouts if self.shard is None else RolloutPaths(self.shard.output(output))

    @property
    def report(self) -> Path:
        """The report in Markdown; the same report is next to it as .html and .json."""
        return self.root / "reward_analysis.md"

    @property
    def logs(self) -> Path:
        return self.own / "logs"

    def log(self, name: str) -> Path:
        """Return the log `vllm_server`, `nemo_gym_servers`, `rollout_collection`, `reward_analysis` or `ray_head`."""
        return self.logs / f"{name}.log"

    @property
    def lock(self) -> Path:
        """Locked by the process that runs the evaluation, or this job's share of it."""
        return self.own / ".ng_eval.lock"

    @property
    def request(self) -> Path:
        return self.own / ".ng_eval_request"

    @property
    def identity(self) -> Path:
        """The model of the rollouts and how it was served, which must not change when the evaluation is resumed."""
        return self.root / "eval_identity.json"

    @property
    def config(self) -> Path:
        return self.root / "eval_config.yaml"

    @property
    def state(self) -> Path:
        """State of the evaluation, atomically replaced at every change; `ng_eval status` reads it."""
        return self.own / "eval_state.json"


Phase = Literal["running", "paused", "draining", "complete", "incomplete", "failed", "interrupted", "stopped"]
"""State of an evaluation.

`incomplete`: it ended with permanently failed rollouts; `failed`: it gave up or was refused; `interrupted`: by a
signal; `stopped`: by `ng_eval stop`. The last five are final.
"""
FINAL: tuple[Phase, ...] = ("complete", "incomplete", "failed", "interrupted", "stopped")


class EvalState(Record, extra="ignore"):  # earlier versions had other fields
    id: str
    folder: str
    shard: str | None = None
    host: str
    pid: int
    started_ticks: int
    """Start time of the process in clock ticks since boot, which tells it from a later process with the same id."""
    state: Phase = "running"
    stage: str = "checks"
    """What it is doing: checks, ray, servers, collection, report, pause or done."""
    attempt: int = 0
    max_attempts: int = 1
    measured: int = 0
    expected: int = 0
    failed: int = 0
    address: str | None = None
    """URL of the head while the servers are running: `ng_status --head ...` shows more."""
    message: str = ""
    started: float
    updated: float = 0.0


def new_state(run_id: str, folder: Path, shard: str | None, max_attempts: int) -> EvalState:
    return EvalState(
        id=run_id,
        folder=str(folder.absolute()),
        shard=shard,
        host=socket.gethostname(),
        pid=os.getpid(),
        started_ticks=start_ticks(os.getpid()),
        max_attempts=max_attempts,
        started=time.time(),
    )


def write_state(path: Path, state: EvalState) -> None:
    replace(path, orjson.dumps(state.model_dump(), option=orjson.OPT_INDENT_2) + b"\n")


def read_state(path: Path) -> EvalState | None:
    try:
        return EvalState.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def is_alive(state: EvalState) -> bool:
    return state.host == socket.gethostname() and start_ticks(state.pid) == state.started_ticks != 0


_LOCKED = (errno.EAGAIN, errno.EACCES)


@contextlib.contextmanager
def locked(folder: EvalFolder) -> Iterator[EvalState | None]:
    """Hold the folder's lock, and yield the state that an earlier evaluation left.

    Raises RunError if another evaluation is running in it. The kernel releases the lock when the process ends.
    """
    folder.own.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        in_use = False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            in_use = error.errno in _LOCKED
        before = read_state(folder.state)
        # On a file system without locks, the process in the state file decides.
        if in_use or (before is not None and before.pid != os.getpid() and is_alive(before)):
            who = f" (id {before.id}, process {before.pid} on {before.host})" if before is not None else ""
            raise RunError(
                f"another ng_eval is running in {folder.own}{who}: `ng_eval status {folder.own}` shows it; wait for "
                f"it, end it with `ng_eval stop {folder.own}`, or choose another output_dir"
            )
        yield before
    finally:
        os.close(descriptor)


class EvalObserver(Protocol):
    def print_line(self, text: str) -> None: ...

    def show(self, status: CollectionStatus) -> None:
        """Show the progress of the collection; called about once a second while it runs."""

    def collection_ended(self) -> None:
        """Called when a collection has ended, before the next message."""


@dataclass
class EvalTracker:
    state: EvalState
    path: Path
    observer: EvalObserver

    def update(self, **changes: Any) -> None:
        """Change fields of the state. A full disk is reported when rollouts are written, not here."""
        changed = self.state.model_copy(update=changes)
        if changed == self.state:
            return
        self.state = changed.model_copy(update={"updated": time.time()})
        try:
            write_state(self.path, self.state)
        except (RunError, OSError):
            return

    def progress(self, status: CollectionStatus | None) -> None:
        if status is not None:
            self.update(measured=status.measured, expected=status.expected, failed=status.failed)

    def print_line(self, text: str) -> None:
        self.observer.print_line(text)


MARK = "ROLLYARD_EVAL"
TIMEOUT_S = 20.0


async def end_leftovers(run_id: str) -> int:
    """Kill the processes of the evaluation `run_id`, wait until they are gone, and return how many there were."""
    found = await asyncio.to_thread(_marked, run_id)
    left, deadline = found, time.monotonic() + TIMEOUT_S
    while left and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.05)
        left = await asyncio.to_thread(_marked, run_id)
    return len(found)


def _marked(run_id: str) -> list[int]:
    entry = f"{MARK}={run_id}".encode()
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(process.name) == os.getpid() or process.stat().st_uid != os.geteuid():
                continue
            zombie = (process / "stat").read_bytes().rpartition(b")")[2].split()[0] in b"ZX"
            if not zombie and entry in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


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
    above = (here, *here.parents)
    if name is None and (around := next(filter(None, map(_in_folder, above)), None)) is not None:
        return around
    for base in above:
        records = [record for record in _records(base) if name is None or record.id == name]
        known = [FoundEval(EvalFolder(Path(one.folder), Shard.parse(one.shard)), one.id) for one in records]
        if known:
            return next((one for one in known if one.is_current() and one.is_running()), known[0])
    if name is None:
        raise OperatorError(f"no evaluation was started from {here} or a folder above it; pass its id or its folder")
    raise OperatorError(f"no evaluation {name!r} was started from {here} or a folder above it, and it is not a folder")


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
        log = Path(state.folder) / "logs" / "ng_eval.log"  # the output of `ng_eval --detach`
        log.parent.mkdir(parents=True, exist_ok=True)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        answered = True
        _send(writer, {"id": state.id, "folder": state.folder, "address": state.address})

    try:
        status = work(started)
    except BaseException as error:
        expected = isinstance(error, RollyardError)
        problem = str(error) if expected else f"internal error: {type(error).__name__}: {error}"
        if not answered:
            _send(writer, {"error": problem, "refused": isinstance(error, OperatorError)})
        print(f"ng_eval: {problem}", file=sys.stderr)
        status = EXIT_FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _send(writer: int, message: dict[str, object]) -> None:
    with os.fdopen(writer, "wb") as pipe:
        pipe.write(orjson.dumps(message))
