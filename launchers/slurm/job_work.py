"""JobWork: runs a job's command until it ends, or until SLURM or the chain's limits stop it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from rollyard.launchers.slurm.chain import INTERVAL_S, ChainRecord, attempts_of, running_time
from rollyard.launchers.slurm.client import SlurmClient
from rollyard.launchers.slurm.containers import STEP_NAME, check_runtime, in_container
from rollyard.launchers.slurm.job import JobSpec, JobState, log_file, seconds_of
from rollyard.launchers.slurm.ray_nodes import RayNodes, authentication, cpus_per_node
from rollyard.records.errors import RollyardError, RunError
from rollyard.records.terminal import duration, plain_line
from rollyard.services.runtime.process_setup import die_with_parent

_MIN_DRAIN_S = 5.0
_SETTLE_S = 0.2
_EXIT_DRAINED = 75
_NEAR_LIMIT = "its time limit is near"


class WorkEnd(NamedTuple):
    """How the command ended."""

    state: JobState
    reason: str
    exit_status: int


class JobWork:
    """Runs the command of one job."""

    def __init__(
        self,
        folder: Path,
        spec: JobSpec,
        job_id: str,
        restart: int,
        environment: Mapping[str, str],
        signals: JobSignals,
        client: SlurmClient,
    ) -> None:
        self._folder = folder
        self._spec = spec
        self._job_id = job_id
        self._restart = restart
        self._environment = environment
        self._signals = signals
        self._client = client
        self._started = time.time()
        self._told: str | None = None
        """Why the command was told to stop."""
        self._kill_at: float | None = None
        self._ending: JobState | None = None
        """What SLURM is doing with the job."""

    def run(
        self, each_time: Callable[[], None], interrupted: Callable[[JobState], None], record: ChainRecord
    ) -> WorkEnd:
        """Run the command and return how it ended.

        `each_time` is called every few seconds, `interrupted` as soon as SLURM ends the job.
        """
        deadlines = self._deadlines(record)
        try:
            check_runtime(self._spec)
            with contextlib.ExitStack() as stack:
                ray = self._ray(stack, each_time)
                command = self._start(ray)
                try:
                    self._follow(command, each_time, interrupted, deadlines)
                    return self._end(command, interrupted)
                finally:
                    command.kill()
        except RollyardError as error:
            if self._signals.terminate and (state := self._slurm_ending()):
                interrupted(state)
                return WorkEnd(state, f"SLURM ended the job: {state}", _EXIT_DRAINED)
            return WorkEnd(JobState.FAILED, str(error), 1)

    def _deadlines(self, record: ChainRecord) -> list[tuple[float, str]]:
        """Return when to tell the command to stop (in the time of time.monotonic) and why."""
        now, spec = time.monotonic(), self._spec
        found = []
        # SLURM sends SIGUSR1 only once, and up to a minute early: it may arrive before its handler is installed.
        if spec.drain_before_s and (limit := seconds_of(spec.time)) is not None:
            found.append((now + limit - spec.drain_before_s, _NEAR_LIMIT))
        if spec.max_walltime_s is not None:
            left = max(0.0, spec.max_walltime_s - running_time(attempts_of(record.events())))
            found.append((now + left, f"the chain has run for max_walltime_s, {duration(spec.max_walltime_s)}"))
        return found

    def _ray(self, stack: contextlib.ExitStack, each_time: Callable[[], None]) -> RayNodes | None:
        if self._spec.nodes == 1:
            return None
        ray = RayNodes(self._folder, self._spec, self._environment, self._client)
        stack.callback(ray.stop)
        ray.start(lambda: self._signals.terminate, each_time)
        return ray

    def _start(self, ray: RayNodes | None) -> JobCommand:
        spec = self._spec
        arguments = list(spec.command)
        environment = {
            **self._environment,
            "GPUS_PER_NODE": str(spec.gpus_per_node),
            "NUM_NODES": str(spec.nodes),
            **spec.environment,
        }
        if ray is not None:
            environment = {**authentication(spec, environment), **environment, "RAY_ADDRESS": ray.address}
            if spec.ray_address_argument is not None:
                arguments.append(f"{spec.ray_address_argument}{ray.address}")
        output = log_file(self._folder, self._job_id)
        terminate = self._terminate_step if spec.container_runtime == "pyxis" else None
        directory = spec.working_directory or self._folder
        node = self._environment.get("SLURMD_NODENAME", "")
        cpus = cpus_per_node(self._environment.get("SLURM_JOB_CPUS_PER_NODE", ""), spec.nodes)[0]
        return JobCommand(in_container(spec, node, cpus, arguments), environment, directory, output, terminate)

    def _terminate_step(self) -> None:
        steps = self._client.steps(self._job_id)
        if step := steps.get(STEP_NAME):
            self._client.signal(step, "TERM")

    def _follow(
        self,
        command: JobCommand,
        each_time: Callable[[], None],
        interrupted: Callable[[JobState], None],
        deadlines: Sequence[tuple[float, str]],
    ) -> None:
        while command.status() is None:
            now = time.monotonic()
            times = [now + INTERVAL_S, *(() if self._is_stopping else (at for at, _ in deadlines))]
            self._signals.wait(min(times if self._kill_at is None else [*times, self._kill_at]) - now)
            each_time()
            if not self._is_stopping:
                if self._signals.terminate:
                    self._terminated(command, interrupted)
                elif self._signals.drain:
                    self._tell(command, _NEAR_LIMIT)
                elif passed := [why for at, why in deadlines if time.monotonic() >= at]:
                    self._tell(command, passed[0])
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
        self._kill_at = time.monotonic() + max(_MIN_DRAIN_S, self._spec.drain_before_s - _MIN_DRAIN_S)
        with contextlib.suppress(RollyardError):
            command.drain()

    def _end(self, command: JobCommand, interrupted: Callable[[JobState], None]) -> WorkEnd:
        status = command.status()
        assert status is not None
        if self._ending is None and status != 0:
            # SLURM signals the command and this process at the same time, and the command may be faster.
            self._signals.wait(_SETTLE_S)
            if (ending := self._slurm_ending()) is not None:
                self._ending = ending
                interrupted(ending)
        if self._ending is not None:
            return WorkEnd(self._ending, f"SLURM ended the job: {self._ending}", _EXIT_DRAINED)
        if status == 0:
            return WorkEnd(JobState.COMPLETED, "the command has completed its work", 0)
        how = f"exit status {status}" if status > 0 else f"killed by {signal.Signals(-status).name}"
        if status == -signal.SIGKILL and self._told is None:
            how += ", as when memory runs out"
        if self._told is not None:
            return WorkEnd(JobState.DRAINED, f"told to stop because {self._told}; {how}", _EXIT_DRAINED)
        lines = command.last_lines()
        return WorkEnd(JobState.FAILED, f"{how}{lines and f': {lines}'}", status if status > 0 else 128 - status)

    def _slurm_ending(self) -> JobState | None:
        try:
            standing = self._client.standing(self._job_id)
        except RollyardError:
            return None
        return None if standing is None else standing.being_ended(self._restart, self._started)


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
                env={
                    "PYTHONUNBUFFERED": "1",
                    **environment,
                },  # the last lines of its output are the last that it printed
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
        """Kill the command and the rest of its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def last_lines(self) -> str:
        """Return the last lines of its output, on one line."""
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
        signal.signal(signal.SIGTERM, self._terminate)
        signal.signal(signal.SIGINT, self._terminate)
        signal.signal(signal.SIGUSR1, self._drain)
        signal.signal(signal.SIGCHLD, self._ignore)

    def wait(self, timeout_s: float) -> None:
        """Wait until a signal arrives, at most `timeout_s`."""
        select.select([self._reader], [], [], max(0.0, timeout_s))
        with contextlib.suppress(BlockingIOError):
            while os.read(self._reader, 512):
                pass

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self.terminate = True

    def _drain(self, number: int, frame: FrameType | None) -> None:
        self.drain = True

    def _ignore(self, number: int, frame: FrameType | None) -> None:
        """SIGCHLD only has to wake up the loop."""
