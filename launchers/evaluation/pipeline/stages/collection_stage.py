"""Runs `ng_collect_rollouts` for an evaluation, and pauses or ends it on request."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from typing import Literal

from rollyard.launchers.evaluation.pipeline import commands
from rollyard.launchers.evaluation.pipeline.plan import EvalPlan
from rollyard.launchers.evaluation.pipeline.stages.running_stages import EvaluationEnding, RunningStages
from rollyard.launchers.evaluation.pipeline.tracker import EvalTracker
from rollyard.records.errors import FailureKind, RunError
from rollyard.records.io.exit_status import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED
from rollyard.records.rollouts.status_file import read_status
from rollyard.records.run_types import HeadFile
from rollyard.records.types import CollectionStatus
from rollyard.services.config.overrides.command_line import title
from rollyard.services.rollouts.failure_summary import most_frequent_failure
from rollyard.services.rollouts.shared.shared_status import shared_status
from rollyard.services.runtime.programs.program import Program
from rollyard.services.runtime.programs.program_errors import raise_for, tail

POLL_S = 0.5
ABANDON_S = 10.0
"""How long the collector may take to end after SIGTERM, when it no longer waits for episodes."""
_PERMANENT = (FailureKind.UNAUTHORIZED, FailureKind.UPSTREAM_REFUSED, FailureKind.BAD_TASK, FailureKind.FORBIDDEN)
"""If most attempts failed like this, another attempt would fail as well."""

Outcome = Literal["complete", "incomplete"]


class CollectionStage:
    """Collects the missing rollouts of an evaluation with a running stack."""

    def __init__(
        self, plan: EvalPlan, environ: Mapping[str, str], stages: RunningStages, tracker: EvalTracker, head: HeadFile
    ) -> None:
        self._plan = plan
        self._environ = {**environ, **({"ROLLYARD_TOKEN": head.token} if head.token else {})}
        self._stages = stages
        self._requests = stages.requests
        self._tracker = tracker
        self._head = head
        self._shown_failure = ""
        """The failure that the user has been shown."""

    async def run(self) -> Outcome:
        """Collect until every rollout is measured or has permanently failed.

        Raises EvaluationEnding if the user ends the evaluation, RunError after a crash, and OperatorError if the
        collection is refused.
        """
        while True:
            await self._wait_while_paused()
            measured = self._tracker.state.measured
            self._tracker.update(stage="collection", state="running")
            process = await self._collect()
            self._show_failure(process)
            status, found = process.ended.result(), self._status()
            if status == EXIT_DONE:
                return "complete"
            if self._requests.ending:
                raise EvaluationEnding
            if status == EXIT_INTERRUPTED and self._requests.paused:
                continue
            if status == EXIT_FAILED and found is not None and found.state == "incomplete":
                if found.measured <= measured:
                    return "incomplete"
                self._tracker.print_line(f"{found.failed} rollouts failed; collecting them once more")
                continue
            if found is not None and found.state == "stopped" and status == EXIT_FAILED:
                error = PermanentFailure if self._is_permanent(found) else TooManyFailures
                raise error(f"{found.note or 'the collection was stopped'}\n{tail(process)}")
            raise_for(process)

    async def _wait_while_paused(self) -> None:
        while self._requests.paused and not self._requests.ending:
            self._tracker.update(stage="pause", state="paused")
            await self._stages.wait()
            self._check_stages()
        if self._requests.ending:
            raise EvaluationEnding

    async def _collect(self) -> Program:
        """Run the collector to its end. It is drained if the user pauses or ends the evaluation."""
        plan = self._plan
        command = commands.collect_command(plan, self._head.url.removeprefix("http://"))
        process = await Program.start(
            "ng_collect_rollouts",
            command,
            plan.folder.collection_log,
            self._environ,
            plan.here,
            title(command),
        )
        deadline: float | None = None
        try:
            while process.running:
                self._show(process)
                await self._stages.wait(process.ended, timeout_s=POLL_S)
                self._check_stages()
                if (self._requests.paused or self._requests.ending) and deadline is None:
                    deadline = time.monotonic() + plan.config.drain_timeout_s
                    self._tracker.update(state="draining")
                    process.send(signal.SIGINT)
                if deadline is not None and (self._requests.now or time.monotonic() > deadline):
                    await process.stop(ABANDON_S)
            self._show(process)
            return process
        finally:
            self._tracker.observer.collection_ended()
            if process.running:
                process.kill()
                await process.ended

    def _check_stages(self) -> None:
        if why := self._stages.failure():
            raise RunError(why)

    def _status(self) -> CollectionStatus | None:
        return read_status(self._plan.folder.rollouts.output)

    def _show(self, process: Program) -> None:
        status = (
            self._status() if self._plan.config.worker is None else shared_status(self._plan.folder.rollouts.output)
        )
        # Before its first status, the file is that of an earlier collection.
        if status is not None and status.updated >= process.started:
            self._tracker.progress(status)
            self._tracker.observer.show(status)
            if status.failed_attempts and not self._shown_failure:
                self._show_failure(process)

    def _show_failure(self, process: Program) -> None:
        """Show the most frequent failure of this collection, if it was not shown before."""
        found = most_frequent_failure(self._plan.folder.rollouts.failures, process.started)
        cause = found.partition(": ")[2]
        if found and cause != self._shown_failure:
            self._shown_failure = cause
            self._tracker.print_line(f"  {'failures':<10} {found}")

    def _is_permanent(self, status: CollectionStatus) -> bool:
        if not status.failures:
            return False
        most = max(status.failures, key=lambda kind: status.failures[kind])
        return most in _PERMANENT


class TooManyFailures(RunError):
    """The collector ended because most rollouts failed, although every process was running."""


class PermanentFailure(RunError):
    """The collection failed for a reason that another attempt would not change."""
