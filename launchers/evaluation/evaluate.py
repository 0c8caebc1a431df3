"""Runs an evaluation to its end: plan, start, collect, report, stop.

`evaluate` checks the plan and locks the folder. An attempt starts Ray and `ng_run` if they are needed, which must keep
running (RunningStages), collects the missing rollouts with `ng_collect_rollouts`, and stops everything again; if
something crashes, another attempt follows. When every rollout is measured, `ng_reward_profile` writes the report.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.eval_state import (
    MARK,
    ControlRequests,
    EvalObserver,
    EvalState,
    EvalTracker,
    Phase,
    end_leftovers,
    locked,
    new_state,
)
from rollyard.launchers.evaluation.model_source import KEY_VARIABLE
from rollyard.launchers.evaluation.plan import (
    EvalPlan,
    check,
    check_identity,
    check_weights,
    collect_command,
    report_command,
    run_command,
    update_manifest,
    write_identity,
)
from rollyard.records.errors import Failure, FailureKind, OperatorError, RollyardError, RunError
from rollyard.records.jsonl import replace
from rollyard.records.rollout_file import read_status
from rollyard.records.run_types import HeadFile
from rollyard.records.script import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from rollyard.records.terminal import duration, plain_line
from rollyard.records.types import CollectionStatus, Json, Record
from rollyard.services.config.overrides import title
from rollyard.services.config.settings_file import dump_settings
from rollyard.services.rollouts.store import most_frequent_failure
from rollyard.services.rollouts.task_subset import TaskSubset
from rollyard.services.runtime.program import STOP_S, ServerProgram, ended_badly, raise_for, tail, until_ready
from rollyard.services.server.settings import without_secrets

POLL_S = 0.5
ABANDON_S = 10.0
"""How long the collector may take to end after SIGTERM, when it no longer waits for episodes."""
RAY_TIMEOUT_S = 180.0
_RAY_POLL_S = 0.2
_RAY_READY = "Ray runtime started"
_PERMANENT = (FailureKind.UNAUTHORIZED, FailureKind.UPSTREAM_REFUSED, FailureKind.BAD_TASK, FailureKind.FORBIDDEN)
"""If most attempts failed like this, another attempt would fail as well."""
MAX_FRUITLESS = 3
"""After this many attempts in a row in which rollouts failed and none succeeded, or in which something could not be
started that no attempt before has started, another one would fail as well."""

Outcome = Literal["complete", "incomplete"]
T = TypeVar("T")


class EvaluationEnding(Exception):
    pass


class _TooManyFailures(RunError):
    """The collector ended because most rollouts failed, although every process was running."""


class _PermanentFailure(RunError):
    """The collection failed for a reason that another attempt would not change."""


class EvalResult(Record):
    id: str
    state: Phase
    folder: Path
    report: Path | None
    measured: int
    expected: int
    failed: int
    attempts: int
    message: str = ""
    refused: bool = False
    """The evaluation cannot succeed until its config or its folder is changed."""
    summary: str = ""

    @property
    def exit_status(self) -> int:
        if self.state in ("interrupted", "stopped"):
            return EXIT_INTERRUPTED
        if self.refused:
            return EXIT_USAGE
        return EXIT_DONE if self.state == "complete" else EXIT_FAILED


async def evaluate(
    config: EvalConfig,
    *,
    environ: Mapping[str, str],
    here: Path,
    observer: EvalObserver,
    requests: ControlRequests | None = None,
    on_start: Callable[[EvalPlan, EvalState], None] = lambda plan, state: None,
    original: Json | None = None,
) -> EvalResult:
    """Check the evaluation, then run it until it is complete, has failed, or is ended through `requests`.

    `on_start` is called when the checks have passed, the folder is locked, and the evaluation can be controlled.
    `original` is the config of another tool from which `config` was converted; it is stored to continue the evaluation.
    Raises OperatorError if a check fails, and RunError if the folder is in use.
    """
    plan = await check(config, environ, here)
    folder, requests = plan.folder, requests or ControlRequests()
    with locked(folder) as before:
        check_identity(folder, plan.identity)  # another evaluation may have written it since the check
        if before is not None:
            await end_leftovers(before.id)
        state = new_state(secrets.token_hex(4), folder.root, config.shard, config.max_attempts)
        tracker = EvalTracker(state, folder.state, observer)
        async with requests.follow(folder, state, here):
            # Not from the status file, which is older than the last rollouts if the collector was killed.
            tracker.update(expected=plan.expected, measured=plan.existing())
            write_identity(folder.identity, plan.identity)
            if plan.served and plan.run_config is not None:
                update_manifest(folder, plan.run_config.identity())
            _write_config(plan, original)
            on_start(plan, tracker.state)
            variables = {**environ, MARK: state.id}
            return await _Evaluation(plan, variables, requests, tracker).run()


def _write_config(plan: EvalPlan, original: Json | None) -> None:
    """Write the config, which `ng_eval` can read again. It contains no secret."""
    tree = without_secrets(original or plan.config.model_dump(mode="json", exclude_defaults=True))
    tree.pop("policy_api_key", None)
    tree.pop("shard", None)  # the config is that of all jobs
    tree["output_dir"] = str(plan.folder.root)  # absolute, so that another folder does not start another evaluation
    if isinstance(plan.tasks, TaskSubset):
        tree["input_jsonl_fpath"] = str(plan.tasks.original.file)
    command = plain_line(f"`ng_eval {shlex.quote(str(plan.folder.config))}` in {shlex.quote(str(plan.here))}")
    header = f"# Written by ng_eval. {command} continues this evaluation.\n"
    replace(plan.folder.config, (header + dump_settings(tree)).encode())


@dataclass
class _Evaluation:
    plan: EvalPlan
    environ: Mapping[str, str]
    requests: ControlRequests
    tracker: EvalTracker
    _summary: str = ""
    _report: Path | None = None

    async def run(self) -> EvalResult:
        message, refused = "", False
        try:
            outcome = await self._attempts()
            state: Phase = "complete" if outcome else "incomplete"
            if not outcome:
                status = self.tracker.state
                missing = status.expected - status.measured
                message = f"{missing} of {status.expected} rollouts failed permanently"
        except EvaluationEnding:
            state = "stopped" if self.requests.ending == "stopped" else "interrupted"
            message = "repeat the command to continue"
        except (OperatorError, _PermanentFailure) as error:
            state, message, refused = "failed", str(error), isinstance(error, OperatorError)
        except (RunError, Failure, OSError) as error:
            state, message = "failed", str(error)
        if state == "incomplete" and not self.plan.existing():
            common = most_frequent_failure(self.plan.folder.rollouts.failures)
            state, message = "failed", f"no rollout was measured; {common or message}"
        if state in ("complete", "incomplete"):
            try:
                if self.plan.folder.rollouts.output.exists():
                    self.tracker.update(stage="report")
                    self._summary = await write_report(self.plan, self.environ)
                    self._report = self.plan.folder.report
            except (RollyardError, OSError) as error:
                state, message = "failed", str(error)
        self.tracker.update(state=state, stage="done", message=message.partition("\n")[0], address=None)
        found = self.tracker.state
        return EvalResult(
            id=found.id,
            state=state,
            folder=self.plan.folder.root,
            report=self._report,
            measured=found.measured,
            expected=found.expected,
            failed=found.expected - found.measured if state == "incomplete" else found.failed,
            attempts=found.attempt,
            message=message,
            refused=refused,
            summary=self._summary,
        )

    async def _attempts(self) -> bool:
        """Return whether every rollout was measured. Raises the error of the last attempt if none succeeds."""
        config, tracker = self.plan.config, self.tracker
        if self.plan.is_complete():
            tracker.print_line("all rollouts are already collected; writing the report")
            tracker.update(measured=tracker.state.expected)
            return True
        fruitless, started = 0, False
        for number in range(1, config.max_attempts + 1):
            before = tracker.state.measured
            tracker.update(attempt=number)
            done = f", {before} of {tracker.state.expected} rollouts so far" if before else ""
            if number > 1 or done:
                tracker.print_line(f"attempt {number} of {config.max_attempts}{done}")
            try:
                outcome = await _Attempt(self.plan, self.environ, self.requests, tracker).run()
                return outcome == "complete"
            except (OperatorError, _PermanentFailure):
                raise
            except (RunError, Failure, OSError) as error:
                # The collector's own count is older than its last rollouts if it was killed.
                measured = max(tracker.state.measured, self.plan.existing())
                tracker.update(message=str(error).partition("\n")[0], measured=measured)
                if self.requests.ending:
                    raise EvaluationEnding from error
                started = started or tracker.state.stage in ("collection", "pause")
                stopped = isinstance(error, _TooManyFailures) and tracker.state.measured <= before
                fruitless = fruitless + 1 if stopped or not started else 0
                if number == config.max_attempts or fruitless == MAX_FRUITLESS:
                    raise RunError(f"gave up after {number} attempts: {error}") from error
                tracker.print_line(f"attempt {number} failed: {error}")
                tracker.print_line(f"next attempt in {config.pause_s:g} s")
                await self.requests.pause_for(config.pause_s)
            if self.requests.ending:
                raise EvaluationEnding
        raise AssertionError("max_attempts is at least 1")


@dataclass(frozen=True)
class _Attempt:
    plan: EvalPlan
    environ: Mapping[str, str]
    requests: ControlRequests
    tracker: EvalTracker

    async def run(self) -> Outcome:
        """Collect all missing rollouts. Raises RunError if another attempt may succeed, OperatorError otherwise."""
        stages = RunningStages(self.requests)
        try:
            head = await self._start(stages)
            environ = {**self.environ, **({"ROLLYARD_TOKEN": head.token} if head.token else {})}
            return await _Collection(self.plan, environ, stages, self.tracker, head).run()
        finally:
            await stages.stop()
            self.tracker.update(address=None)

    async def _start(self, stages: RunningStages) -> HeadFile:
        plan, source = self.plan, self.plan.source
        if source.kind == "running":
            return HeadFile.at(str(plan.config.head))
        ray = plan.config.ray_head_node_address
        if plan.ray_command:
            self._starting("ray", "Ray", plan.folder.log("ray_head"))
            ray = await stages.until_done(start_ray(plan, self.environ, stages))
        if plan.served:
            log = plan.folder.log("vllm_server")
            self.tracker.print_line(f"  {'vLLM':<10} starts with the servers, log: {log}")
        self._starting("servers", "servers", plan.folder.log("nemo_gym_servers"))
        started = time.monotonic()
        try:
            starting = _start_servers(plan, self.environ, stages, ray, self.tracker.print_line)
            head = await stages.until_done(starting)
        except OperatorError as error:
            if plan.served and self.tracker.state.measured:  # it has worked with these settings, so any error may pass
                raise RunError(str(error)) from error
            raise
        if plan.served:
            await asyncio.to_thread(check_weights, plan.config, plan.identity, plan.here)
        self.tracker.update(address=head.url)
        took = duration(time.monotonic() - started)
        self.tracker.print_line(f"  {'servers':<10} ready at {head.url} after {took}")
        log = plan.folder.log("rollout_collection")
        self.tracker.print_line(f"  {'rollouts':<10} collecting, log: {log}")
        return head

    def _starting(self, stage: str, name: str, log: object) -> None:
        self.tracker.update(stage=stage, state="running")
        self.tracker.print_line(f"  {name:<10} starting, log: {log}")


async def start_ray(plan: EvalPlan, environ: Mapping[str, str], stages: RunningStages) -> str:
    port, dashboard = _free_ports(2)
    folder = tempfile.mkdtemp(prefix="ng-ray-")  # short, because Ray's sockets are in it
    command = [
        *(*plan.ray_command, "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}"),
        *(f"--dashboard-port={dashboard}", "--include-dashboard=false"),
        *("--disable-usage-stats", f"--temp-dir={folder}"),
    ]
    process = await ServerProgram.start(
        "Ray",
        command,
        plan.folder.log("ray_head"),
        {**environ, "RAY_TMPDIR": folder},
        plan.here,
        " ".join(command),
        temporary=Path(folder),
    )
    stages.add(process)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + RAY_TIMEOUT_S
    while _RAY_READY not in process.printed():
        await asyncio.wait({process.ended}, timeout=_RAY_POLL_S)
        if not process.running:
            raise_for(process)
        if loop.time() > deadline:
            raise RunError(f"Ray was not ready within {RAY_TIMEOUT_S:g} s\n{tail(process)}")
    return f"127.0.0.1:{port}"


def _free_ports(count: int) -> list[int]:
    with ExitStack() as sockets:
        found = [sockets.enter_context(closing(socket.create_server(("127.0.0.1", 0)))) for _ in range(count)]
        return [int(sock.getsockname()[1]) for sock in found]


async def _start_servers(
    plan: EvalPlan, environ: Mapping[str, str], stages: RunningStages, ray: str | None, show: Callable[[str], None]
) -> HeadFile:
    """Start `ng_run` and return its head once all servers are ready. `show` receives each line about their start."""
    command = run_command(plan, ray)
    variables = {**environ, KEY_VARIABLE: plan.source.api_key}
    shown = 0

    def show_new(printed: str) -> None:
        nonlocal shown
        lines = printed[: printed.rfind("\n") + 1].splitlines()
        for line in lines[shown:]:
            if line.startswith("  policy_model "):
                show(line)
        shown = len(lines)

    process = await ServerProgram.start(
        "ng_run", command, plan.folder.log("nemo_gym_servers"), variables, plan.here, title(command)
    )
    stages.add(process)
    return await until_ready(process, plan.here, show_new if plan.served else lambda printed: None)


@dataclass
class _Collection:
    """Collects the missing rollouts of an evaluation with a running stack."""

    plan: EvalPlan
    environ: Mapping[str, str]
    stages: RunningStages
    tracker: EvalTracker
    head: HeadFile
    _shown_failure: str = ""

    async def run(self) -> Outcome:
        """Collect until every rollout is measured or has permanently failed."""
        while True:
            await self._wait_while_paused()
            measured = self.tracker.state.measured
            self.tracker.update(stage="collection", state="running")
            process = await self._collect()
            self._show_failure(process)
            status, found = process.ended.result(), self._status()
            if self.plan.served and found is not None and found.failed_attempts:  # vLLM may have been restarted
                await asyncio.to_thread(check_weights, self.plan.config, self.plan.identity, self.plan.here)
            if status == EXIT_DONE:
                return "complete"
            if self.stages.requests.ending:
                raise EvaluationEnding
            if status == EXIT_INTERRUPTED and self.stages.requests.paused:
                continue
            if status == EXIT_FAILED and found is not None and found.state == "incomplete":
                if found.measured <= measured:
                    return "incomplete"
                self.tracker.print_line(f"{found.failed} rollouts failed; collecting them once more")
                continue
            if found is not None and found.state == "stopped" and status == EXIT_FAILED:
                most = max(found.failures, key=lambda kind: found.failures[kind], default=None)
                error = _PermanentFailure if most in _PERMANENT else _TooManyFailures
                raise error(f"{found.note or 'the collection was stopped'}\n{tail(process)}")
            raise_for(process)

    async def _wait_while_paused(self) -> None:
        while self.stages.requests.paused and not self.stages.requests.ending:
            self.tracker.update(stage="pause", state="paused")
            await self.stages.wait()
            self._check_running()
        if self.stages.requests.ending:
            raise EvaluationEnding

    async def _collect(self) -> ServerProgram:
        """Run the collector to its end. It is drained if the user pauses or ends the evaluation."""
        plan = self.plan
        command = collect_command(plan, self.head.url.removeprefix("http://"))
        log = plan.folder.log("rollout_collection")
        process = await ServerProgram.start(
            "ng_collect_rollouts", command, log, self.environ, plan.here, title(command)
        )
        deadline: float | None = None
        try:
            while process.running:
                self._show(process)
                await self.stages.wait(process.ended, timeout_s=POLL_S)
                self._check_running()
                if (self.stages.requests.paused or self.stages.requests.ending) and deadline is None:
                    deadline = time.monotonic() + plan.config.drain_timeout_s
                    self.tracker.update(state="draining")
                    process.send(signal.SIGINT)
                if deadline is not None and (self.stages.requests.now or time.monotonic() > deadline):
                    await process.stop(ABANDON_S)
            self._show(process)
            return process
        finally:
            self.tracker.observer.collection_ended()
            if process.running:
                process.kill()
                await process.ended

    def _check_running(self) -> None:
        if why := self.stages.failure():
            raise RunError(why)

    def _status(self) -> CollectionStatus | None:
        return read_status(self.plan.folder.collected.output)

    def _show(self, process: ServerProgram) -> None:
        status = self._status()
        # Before its first status, the file is that of an earlier collection.
        if status is not None and status.updated >= process.started:
            self.tracker.progress(status)
            self.tracker.observer.show(status)
            if status.failed_attempts and not self._shown_failure:
                self._show_failure(process)

    def _show_failure(self, process: ServerProgram) -> None:
        found = most_frequent_failure(self.plan.folder.collected.failures, process.started)
        cause = found.partition(": ")[2]
        if found and cause != self._shown_failure:
            self._shown_failure = cause
            self.tracker.print_line(f"  {'failures':<10} {found}")


async def write_report(plan: EvalPlan, environ: Mapping[str, str]) -> str:
    command = report_command(plan)
    process = await ServerProgram.start(
        "ng_reward_profile", command, plan.folder.log("reward_analysis"), environ, plan.here, title(command)
    )
    try:
        if await process.ended != EXIT_DONE:
            raise RunError(ended_badly(process))
    finally:
        if process.running:
            process.kill()
            await process.ended
    return process.printed().rstrip("\n")


class RunningStages:
    """Stages that must keep running until the attempt ends; they are stopped in reverse order."""

    def __init__(self, requests: ControlRequests) -> None:
        self.requests = requests
        self._stages: list[ServerProgram] = []

    def add(self, stage: ServerProgram) -> None:
        self._stages.append(stage)

    def failure(self, count: int | None = None) -> str:
        """Return why the attempt cannot continue; empty if all stages are running. `count`: only the first stages."""
        for stage in self._stages[:count]:
            if not stage.running:
                return ended_badly(stage)
        return ""

    async def wait(
        self, *others: asyncio.Future[Any], timeout_s: float | None = None, count: int | None = None
    ) -> None:
        """Wait until one of `others` is done, a stage ends, a request arrives, or `timeout_s` has passed."""
        changed = asyncio.create_task(self.requests.changed())
        waited = {*others, *(stage.ended for stage in self._stages[:count]), changed}
        try:
            await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()

    async def until_done(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`, which starts a stage."""
        earlier = len(self._stages)  # `work` reports the end of the stage that it starts
        task = asyncio.create_task(work)
        try:
            while not task.done():
                if self.requests.ending:
                    raise EvaluationEnding
                await self.wait(task, count=earlier)
                if not task.done() and (why := self.failure(earlier)):
                    raise RunError(why)
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def stop(self) -> None:
        for stage in reversed(self._stages):
            await stage.stop(1.0 if self.requests.now else STOP_S)
