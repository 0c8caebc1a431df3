"""The program of every job: `python -m rollyard.launchers.slurm.job_runner FOLDER POSITION CHAIN`.

It queues the job's successor, runs the command, and records how the job ended. Exit statuses: 0, the work is done;
75, the command stopped early as it was told to; otherwise the command's own, or 1. Only 0 ends the chain by itself.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from rollyard.launchers.slurm.client import QueuedJob, SlurmClient, SlurmError, Standing
from rollyard.launchers.slurm.job import (
    JOB_FILE,
    ChainJob,
    JobSpec,
    JobState,
    comment,
    log_file,
    read_record,
    seconds_of,
)
from rollyard.launchers.slurm.nodes import (
    STEP_NAME,
    RayNodes,
    authentication,
    check_runtime,
    cpus_per_node,
    in_container,
)
from rollyard.launchers.slurm.scheduler import (
    CANCELLED,
    DONE,
    ChainEnd,
    ChainEventKind,
    ChainRecord,
    JobAttempt,
    attempts_of,
    end_by_rule,
    end_of,
    read_marker,
    submit_once,
    write_marker,
)
from rollyard.records.errors import RollyardError, RunError
from rollyard.records.terminal import plain_line
from rollyard.services.runtime.process_setup import die_with_parent

EXIT_ENDED, EXIT_DRAINED = 1, 75
CLIENT_TIMEOUT_S = 30.0


class RunningJob(NamedTuple):
    """The job in which the runner runs, from SLURM's environment variables."""

    job_id: str
    restart: int
    position: int
    node: str


class JobRunner:
    def __init__(
        self, folder: Path, job: ChainJob, me: RunningJob, environment: Mapping[str, str], signals: JobSignals
    ) -> None:
        self._folder = folder
        self._job = job
        self._me = me
        self._environment = environment
        self._signals = signals
        self._client = SlurmClient(environment, CLIENT_TIMEOUT_S)
        self._record = ChainRecord(folder, job.chain)
        self._successor = Successor(self._client, self._record, job, me)
        self._alive = alive_file(folder, me.job_id, me.restart)

    def run(self) -> int:
        if (status := self._over()) is not None:
            return status
        listed = self._listed()
        if self._is_duplicate(listed):
            return EXIT_ENDED
        # Before anything else, so that the chain continues even if this process is killed now.
        self._successor.ensure(listed)
        if (other := settle(self._client, self._record, self._job.spec, self._folder, self._me.job_id)) is not None:
            print_line(f"job {other} of this chain is still running; this one ends")
            self._successor.cancel()
            return EXIT_ENDED
        if end := end_by_rule(self._job.spec, attempts_of(self._record.events())):
            if end.state == JobState.COMPLETED:  # its job was killed before it could write the marker
                self._mark_done()
            self._close(end)
            return 0 if end.state == JobState.COMPLETED else EXIT_ENDED
        self._record.append(ChainEventKind.STARTED, self._me.job_id, self._me.restart, node=self._me.node)
        work = JobWork(self._folder, self._job.spec, self._me, self._environment, self._signals, self._client)
        return self._finish(work.run(self._each_time, self._interrupted))

    def _each_time(self) -> None:
        with contextlib.suppress(OSError):
            self._alive.touch()
        self._successor.ensure()

    def _interrupted(self, state: JobState) -> None:
        """Record the end at once, because SLURM kills this process soon."""
        self._ended(WorkEnd(state, f"SLURM ended the job: {state}", EXIT_DRAINED))
        if state == JobState.CANCELLED:
            self._close(ChainEnd(state, f"job {self._me.job_id} was cancelled"))

    def _over(self) -> int | None:
        if marker := read_marker(self._folder / DONE, self._job.chain):
            print_line(f"the work was completed by job {marker.job_id}")
            return 0
        if end := end_of(self._record.events()):
            print_line(f"the chain has ended: {end.state}, {end.reason}")
            return EXIT_ENDED
        if read_marker(self._folder / CANCELLED, self._job.chain):
            self._close(ChainEnd(JobState.CANCELLED, "the chain was cancelled"))
            return EXIT_ENDED
        return None

    def _listed(self) -> list[QueuedJob]:
        try:
            jobs = self._client.queue()
        except SlurmError as error:
            print_line(f"the jobs of this chain could not be listed: {error}")
            return []
        return [job for job in jobs if job.comment.startswith(comment(self._job.chain))]

    def _is_duplicate(self, listed: list[QueuedJob]) -> bool:
        """Return whether this job was submitted twice because an answer of sbatch was lost. The first one continues."""
        same = [job for job in listed if job.comment == comment(self._job.chain, self._me.position)]
        first = min((int(job.job_id) for job in same if job.state.alive), default=int(self._me.job_id))
        if first < int(self._me.job_id):
            print_line(f"job {first} is the same job, because sbatch was called twice; this one ends")
        return first < int(self._me.job_id)

    def _finish(self, end: WorkEnd) -> int:
        self._ended(end)
        if end.state == JobState.COMPLETED:
            self._mark_done()
            self._close(ChainEnd(end.state, f"job {self._me.job_id} completed the work"))
        elif rule := end_by_rule(self._job.spec, attempts_of(self._record.events())):
            self._close(rule)
        elif not self._job.spec.chain:
            self._close(ChainEnd(end.state, end.reason))
        else:
            self._successor.ensure(at_once=True)
        with contextlib.suppress(OSError):
            self._alive.unlink(missing_ok=True)
        return end.exit_status

    def _mark_done(self) -> None:
        write_marker(self._folder / DONE, self._job.chain, self._me.job_id)

    def _ended(self, end: WorkEnd) -> None:
        known = {(one.job_id, one.restart): one for one in attempts_of(self._record.events())}
        if (mine := known.get((self._me.job_id, self._me.restart))) is not None and mine.ended is not None:
            return
        print_line(f"{end.state}: {end.reason}")
        me = self._me
        self._record.append(
            ChainEventKind.ENDED, me.job_id, me.restart, node=me.node, state=end.state, reason=end.reason
        )

    def _close(self, end: ChainEnd) -> None:
        if end_of(self._record.events()) is None:
            print_line(f"the chain has ended: {end.state}, {end.reason}")
            me = self._me
            self._record.append(ChainEventKind.CLOSED, me.job_id, me.restart, state=end.state, reason=end.reason)
        self._successor.cancel()


def print_line(message: str) -> None:
    print(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] rollyard: {message}", flush=True)


_RETRY_S = 60.0


@dataclass
class Successor:
    """Queues and cancels the next job of a chain.

    It depends on this job with `afternotok`, so that it starts after any end other than success: a time limit, a lost
    node, kill -9. SLURM removes it if this job succeeds (--kill-on-invalid-dep).
    """

    client: SlurmClient
    record: ChainRecord
    job: ChainJob
    me: RunningJob
    _queued: str | None = None
    _next_try: float = 0.0

    def ensure(self, listed: Sequence[QueuedJob] = (), *, at_once: bool = False) -> None:
        """Queue the successor unless it is queued already. A failure is recorded and tried again a minute later.

        `listed`: jobs of the chain; one of them may be the successor that this job queued before SLURM restarted it.
        `at_once`: do not wait for that minute, because this job ends.
        """
        spec, position = self.job.spec, self.me.position
        if not spec.chain or self._queued is not None or (time.monotonic() < self._next_try and not at_once):
            return
        if position > spec.max_jobs:
            # Where chain.jsonl cannot be written, no start is counted; each job has its position from sbatch.
            print_line(f"no successor: this is job {position} of the chain, and max_jobs is {spec.max_jobs}")
            self._next_try = time.monotonic() + _RETRY_S
            return
        wanted = comment(self.job.chain, position + 1)
        for job in listed:
            if job.comment == wanted and job.state == JobState.PENDING:
                self._queued = job.job_id
                return
        after = [f"afternotok:{self.me.job_id}"]
        try:
            self._queued = submit_once(self.client, spec, self.job.chain, position + 1, after)
        except RollyardError as error:
            self._next_try = time.monotonic() + _RETRY_S
            print_line(f"the successor of this job could not be queued: {error}")
            self.record.append(ChainEventKind.WARNING, self.me.job_id, reason=f"no successor: {error}")
            return
        self.record.append(ChainEventKind.QUEUED, self.me.job_id, successor=self._queued)
        print_line(f"queued job {self._queued}, which continues if this job ends before its work is done")

    def cancel(self) -> None:
        """Cancel the successor. If that fails, the successor starts, sees that the chain has ended, and ends."""
        if self._queued is None:
            return
        try:
            self.client.cancel([self._queued])
        except RunError as error:
            print_line(f"the successor {self._queued} could not be cancelled: {error}")


_LIMIT_SLACK_S = 120.0
"""SLURM enforces time limits in steps of half a minute, and the time of the alive file is older than the end."""
_PASSING = ("COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED")
"""States that hide the final one."""
_COMPLETE_S = 180.0
"""Longer than SLURM's UnkillableStepTimeout, 60 s by default."""
_POLL_S = 0.5


def settle(client: SlurmClient, record: ChainRecord, spec: JobSpec, folder: Path, own_job: str) -> str | None:
    """Record the end of each attempt that has none. Returns the id of another job of the chain that is still alive."""
    for attempt in attempts_of(record.events()):
        if attempt.ended is not None:
            continue
        alive = alive_file(folder, attempt.job_id, attempt.restart)
        last = alive.stat().st_mtime if alive.exists() else attempt.started
        if attempt.job_id == own_job:
            state, ended, reason = JobState.REQUEUED, last, "SLURM started the job again"
        else:
            standing = _when_complete(client, attempt.job_id)
            if standing is not None and standing.state.alive and standing.name not in _PASSING:
                return attempt.job_id
            known = standing.state if standing is not None and not standing.state.alive else None
            state, reason = _state(known or client.accounted(attempt.job_id), attempt, last, spec)
            ended = (standing.ended if known is not None and standing is not None else None) or last
        job = attempt.job_id, attempt.restart
        record.append(ChainEventKind.ENDED, *job, at=ended, node=attempt.node, state=state, reason=reason)
        with contextlib.suppress(OSError):
            alive.unlink(missing_ok=True)
    return None


def alive_file(folder: Path, job_id: str, restart: int) -> Path:
    """Return the file whose time shows until when this start of the job ran, if SLURM no longer knows it.

    The log cannot show it: it may be silent for hours, and a restart of the job appends to it.
    """
    return folder / f".alive-{job_id}-{restart}"


def _when_complete(client: SlurmClient, job_id: str) -> Standing | None:
    """Return the state of a job; None if SLURM does not know it, or does not answer.

    While processes of a job are being stopped, or after SIGSTOP, SLURM does not show its final state.
    """
    deadline = time.monotonic() + _COMPLETE_S
    try:
        while (standing := client.standing(job_id)) is not None and standing.name in _PASSING:
            if time.monotonic() >= deadline:
                break
            time.sleep(_POLL_S)
    except RunError:
        return None
    return standing


def _state(known: JobState | None, attempt: JobAttempt, last: float, spec: JobSpec) -> tuple[JobState, str]:
    if known is not None and known != JobState.UNKNOWN:
        return known, f"the job was ended by SLURM or killed; its state is {known}"
    limit = seconds_of(spec.time)
    if limit is not None and last - attempt.started >= limit - _LIMIT_SLACK_S > 0:
        return JobState.TIMEOUT, "SLURM no longer knows the job; it ran until its time limit"
    return JobState.UNKNOWN, "SLURM no longer knows the job, and it left no record of its end"


def main(arguments: list[str], environment: Mapping[str, str]) -> int:
    """Run the job in whose batch script this is called. Returns its exit status."""
    signals = JobSignals()
    if len(arguments) != 3 or "SLURM_JOB_ID" not in environment:
        print("usage, within a SLURM job: python -m ...slurm.job_runner FOLDER POSITION CHAIN", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    restart = environment.get("SLURM_RESTART_COUNT", "0")
    me = RunningJob(environment["SLURM_JOB_ID"], int(restart), int(arguments[1]), socket.gethostname())
    me = me._replace(node=environment.get("SLURMD_NODENAME", me.node))
    try:
        job = read_record(folder / JOB_FILE, ChainJob)
        if job.chain != arguments[2]:
            print_line("the folder has been submitted again since; this job of the earlier chain ends")
            return EXIT_ENDED
        return JobRunner(folder, job, me, environment, signals).run()
    except (RollyardError, FileNotFoundError) as error:
        print_line(f"FAILED: {error}")
        return EXIT_ENDED


_MIN_DRAIN_S = 5.0
_SETTLE_S = 0.2


class WorkEnd(NamedTuple):
    state: JobState
    reason: str
    exit_status: int


@dataclass
class JobWork:
    folder: Path
    spec: JobSpec
    me: RunningJob
    environment: Mapping[str, str]
    signals: JobSignals
    client: SlurmClient
    _told: str | None = None
    _kill_at: float | None = None
    _ending: JobState | None = None

    def __post_init__(self) -> None:
        self._started = time.time()
        limit, drain = seconds_of(self.spec.time), self.spec.drain_before_s
        # SLURM sends SIGUSR1 only once, and up to a minute early: it may arrive before its handler is installed.
        self._drain_at = time.monotonic() + limit - drain if drain and limit is not None else None

    def run(self, each_time: Callable[[], None], interrupted: Callable[[JobState], None]) -> WorkEnd:
        """Run the command and return how it ended.

        `each_time` is called every few seconds, `interrupted` as soon as SLURM ends the job.
        """
        try:
            check_runtime(self.spec)
            with contextlib.ExitStack() as stack:
                ray = None
                if self.spec.nodes > 1:
                    ray = RayNodes(self.folder, self.spec, self.environment, self.client)
                    stack.callback(ray.stop)
                    ray.start(lambda: self.signals.terminate, each_time)
                command = self._start(ray)
                try:
                    self._follow(command, each_time, interrupted)
                    return self._end(command, interrupted)
                finally:
                    command.kill()
        except RollyardError as error:
            if self.signals.terminate and (state := self._slurm_ending()):
                interrupted(state)
                return WorkEnd(state, f"SLURM ended the job: {state}", EXIT_DRAINED)
            return WorkEnd(JobState.FAILED, str(error), 1)

    def _start(self, ray: RayNodes | None) -> JobCommand:
        spec = self.spec
        arguments = list(spec.command)
        sizes = {"GPUS_PER_NODE": str(spec.gpus_per_node), "NUM_NODES": str(spec.nodes)}
        environment = {**self.environment, **sizes, **spec.environment}
        if ray is not None:
            environment = {**authentication(spec, environment), **environment, "RAY_ADDRESS": ray.address}
            if spec.ray_address_argument is not None:
                arguments.append(f"{spec.ray_address_argument}{ray.address}")
        output = log_file(self.folder, self.me.job_id)
        terminate = self._terminate_step if spec.container_runtime == "pyxis" else None
        node = self.environment.get("SLURMD_NODENAME", "")
        cpus = cpus_per_node(self.environment.get("SLURM_JOB_CPUS_PER_NODE", ""), spec.nodes)[0]
        command = in_container(spec, node, cpus, arguments)
        return JobCommand(command, environment, spec.working_directory or self.folder, output, terminate)

    def _terminate_step(self) -> None:
        if step := self.client.steps(self.me.job_id).get(STEP_NAME):
            self.client.signal(step, "TERM")

    def _follow(
        self, command: JobCommand, each_time: Callable[[], None], interrupted: Callable[[JobState], None]
    ) -> None:
        while command.status() is None:
            now = time.monotonic()
            times = [now + _INTERVAL_S, None if self._is_stopping else self._drain_at, self._kill_at]
            self.signals.wait(min(at for at in times if at is not None) - now)
            each_time()
            if not self._is_stopping:
                if self.signals.terminate:
                    self._terminated(command, interrupted)
                elif self.signals.drain or (self._drain_at is not None and time.monotonic() >= self._drain_at):
                    self._tell(command, "its time limit is near")
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill_at = None
                command.kill()

    @property
    def _is_stopping(self) -> bool:
        return self._told is not None or self._ending is not None

    def _terminated(self, command: JobCommand, interrupted: Callable[[JobState], None]) -> None:
        self._ending = self._slurm_ending()
        if self._ending is not None:
            interrupted(self._ending)  # SLURM has signalled the command, too; a second SIGTERM may mean "at once"
        else:
            self._tell(command, "the job got SIGTERM")

    def _tell(self, command: JobCommand, why: str) -> None:
        self._told = why
        self._kill_at = time.monotonic() + max(_MIN_DRAIN_S, self.spec.drain_before_s - _MIN_DRAIN_S)
        with contextlib.suppress(RollyardError):
            command.drain()

    def _end(self, command: JobCommand, interrupted: Callable[[JobState], None]) -> WorkEnd:
        status = command.status()
        assert status is not None
        if self._ending is None and status != 0:
            # SLURM signals the command and this process at the same time, and the command may be faster.
            self.signals.wait(_SETTLE_S)
            if (ending := self._slurm_ending()) is not None:
                self._ending = ending
                interrupted(ending)
        if self._ending is not None:
            return WorkEnd(self._ending, f"SLURM ended the job: {self._ending}", EXIT_DRAINED)
        if status == 0:
            return WorkEnd(JobState.COMPLETED, "the command has completed its work", 0)
        how = f"exit status {status}" if status > 0 else f"killed by {signal.Signals(-status).name}"
        if status == -signal.SIGKILL and self._told is None:
            how += ", as when memory runs out"
        if self._told is not None:
            return WorkEnd(JobState.DRAINED, f"told to stop because {self._told}; {how}", EXIT_DRAINED)
        lines = command.last_lines()
        return WorkEnd(JobState.FAILED, f"{how}{lines and f': {lines}'}", status if status > 0 else 128 - status)

    def _slurm_ending(self) -> JobState | None:
        try:
            standing = self.client.standing(self.me.job_id)
        except RollyardError:
            return None
        return None if standing is None else standing.being_ended(self.me.restart, self._started)


_INTERVAL_S = 10.0
"""How often the runner looks whether the successor is queued."""
_TAIL_BYTES, _TAIL_LINES, _LINE_CHARACTERS = 8192, 3, 300


class JobCommand:
    """A running command. It is killed with the runner, so that nothing runs outside a job.

    `terminate`: sends SIGTERM to the command; None: to its process. srun needs this, because it kills its tasks when it
    gets SIGTERM itself.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        directory: Path,
        output: Path,
        terminate: Callable[[], None] | None = None,
    ) -> None:
        self._output = output
        self._offset = output.stat().st_size if output.exists() else 0
        self._terminate = terminate
        try:
            self._process = subprocess.Popen(
                command,
                env={"PYTHONUNBUFFERED": "1", **environment},  # the last lines of its output are what it printed last
                cwd=directory,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise RunError(f"the command {plain_line(str(command[0]))} cannot be started: {error}") from error

    def status(self) -> int | None:
        """Return the exit status, -N for signal N; None while it runs."""
        return self._process.poll()

    def drain(self) -> None:
        """Tell the command to finish. Signals only the process itself, which stops those that it has started."""
        if self._terminate is not None:
            self._terminate()
        elif self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def last_lines(self) -> str:
        try:
            with self._output.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._offset, end - _TAIL_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        lines = [plain_line(line.strip())[:_LINE_CHARACTERS] for line in text.splitlines() if line.strip()]
        return " | ".join(lines[-_TAIL_LINES:])


class JobSignals:
    """Installs handlers for SIGTERM, SIGINT, SIGUSR1 and SIGCHLD. `wait` returns early when one arrives."""

    def __init__(self) -> None:
        self.terminate = False
        """SIGTERM or SIGINT: the job is being ended."""
        self.drain = False
        """SIGUSR1: the job's time limit is near."""
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._received)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it only has to wake up the loop

    def wait(self, timeout_s: float) -> None:
        select.select([self._reader], [], [], max(0.0, timeout_s))
        with contextlib.suppress(BlockingIOError):
            while os.read(self._reader, 512):
                pass

    def _received(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self.drain = True
        else:
            self.terminate = True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
