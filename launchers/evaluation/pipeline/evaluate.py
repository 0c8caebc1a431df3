"""evaluate: runs an evaluation to its end, with as many attempts as it needs."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.pipeline.attempt import Attempt
from rollyard.launchers.evaluation.pipeline.checks import check
from rollyard.launchers.evaluation.pipeline.config_file import dump_eval_config
from rollyard.launchers.evaluation.pipeline.control.control_requests import ControlRequests
from rollyard.launchers.evaluation.pipeline.control.control_server import ControlServer
from rollyard.launchers.evaluation.pipeline.eval_lock import locked
from rollyard.launchers.evaluation.pipeline.eval_state import EvalState, Phase, new_state
from rollyard.launchers.evaluation.pipeline.identity import check_identity, write_identity
from rollyard.launchers.evaluation.pipeline.leftover_processes import MARK, end_leftovers
from rollyard.launchers.evaluation.pipeline.plan import EvalPlan
from rollyard.launchers.evaluation.pipeline.stages.collection_stage import PermanentFailure, TooManyFailures
from rollyard.launchers.evaluation.pipeline.stages.report_stage import write_report
from rollyard.launchers.evaluation.pipeline.stages.running_stages import EvaluationEnding
from rollyard.launchers.evaluation.pipeline.tracker import EvalObserver, EvalTracker
from rollyard.records.errors import Failure, OperatorError, RollyardError, RunError
from rollyard.records.io.exit_status import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from rollyard.records.io.jsonl import replace
from rollyard.records.io.terminal import plain_line
from rollyard.records.types import Json, Record
from rollyard.services.rollouts.failure_summary import most_frequent_failure
from rollyard.services.rollouts.task_subset import TaskSubset
from rollyard.services.server.settings import without_secrets

_MARK_LENGTH = 8
MAX_FRUITLESS = 3
"""After this many attempts in a row in which rollouts failed and none succeeded, or in which something could not be
started that no attempt before has started, another one would fail as well."""


class EvalResult(Record):
    """How an evaluation ended."""

    id: str
    state: Phase
    folder: Path
    report: Path | None
    """The report in Markdown; None if none was written."""
    measured: int
    expected: int
    failed: int
    attempts: int
    message: str = ""
    """Why it is not complete."""
    refused: bool = False
    """The evaluation cannot succeed until its config or its folder is changed."""
    summary: str = ""
    """The summary of the report, several lines."""

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
        state = new_state(secrets.token_hex(_MARK_LENGTH // 2), folder.root, config.worker, config.max_attempts)
        tracker = EvalTracker(state, folder.state, observer)
        async with ControlServer(requests, lambda: tracker.state, folder, here) as control:
            # Not from the status file, which is older than the last rollouts if the collector was killed.
            tracker.update(address=control.address, expected=plan.expected, measured=plan.existing())
            write_identity(folder, plan.identity)
            _write_config(plan, original)
            on_start(plan, tracker.state)
            variables = {**environ, MARK: state.id}
            return await _Evaluation(plan, variables, requests, tracker).run()


def _write_config(plan: EvalPlan, original: Json | None) -> None:
    """Write the config, which `ng_eval` can read again. It contains no secret."""
    tree = without_secrets(original or plan.config.model_dump(mode="json", exclude_defaults=True))
    tree.pop("policy_api_key", None)
    tree["output_dir"] = str(plan.folder.root)  # absolute, so that another folder does not start another evaluation
    if isinstance(plan.tasks, TaskSubset):
        tree["input_jsonl_fpath"] = str(plan.tasks.original.file)
    command = plain_line(f"`ng_eval {shlex.quote(str(plan.folder.config))}` in {shlex.quote(str(plan.here))}")
    header = f"# Written by ng_eval. {command} continues this evaluation.\n"
    replace(plan.folder.config, (header + dump_eval_config(tree)).encode())


class _Evaluation:
    def __init__(
        self, plan: EvalPlan, environ: Mapping[str, str], requests: ControlRequests, tracker: EvalTracker
    ) -> None:
        self._plan = plan
        self._environ = environ
        self._requests = requests
        self._tracker = tracker
        self._summary = ""
        self._report: Path | None = None

    async def run(self) -> EvalResult:
        message, refused = "", False
        try:
            outcome = await self._attempts()
            state: Phase = "complete" if outcome else "incomplete"
            if not outcome:
                status = self._tracker.state
                missing = status.expected - status.measured
                message = f"{missing} of {status.expected} rollouts failed permanently"
        except EvaluationEnding:
            state = "stopped" if self._requests.ending == "stopped" else "interrupted"
            message = "repeat the command to continue"
        except (OperatorError, PermanentFailure) as error:
            state, message, refused = "failed", str(error), isinstance(error, OperatorError)
        except (RunError, Failure, OSError) as error:
            state, message = "failed", str(error)
        if state == "incomplete" and not self._plan.existing():
            common = most_frequent_failure(self._plan.folder.rollouts.failures)
            state, message = "failed", f"no rollout was measured; {common or message}"
        if state in ("complete", "incomplete"):
            try:
                await self._write_report()
            except (RollyardError, OSError) as error:
                state, message = "failed", str(error)
        self._tracker.update(state=state, stage="done", message=message.partition("\n")[0], address=None)
        return self._result(state, message, refused=refused)

    async def _attempts(self) -> bool:
        """Return whether every rollout was measured. Raises the error of the last attempt if none succeeds."""
        config, tracker = self._plan.config, self._tracker
        if self._plan.is_complete():
            tracker.print_line("all rollouts are already collected; writing the report")
            return True
        fruitless, started = 0, False
        for number in range(1, config.max_attempts + 1):
            before = tracker.state.measured
            tracker.update(attempt=number)
            self._announce(number)
            try:
                outcome = await Attempt(self._plan, self._environ, self._requests, tracker).run()
                return outcome == "complete"
            except (OperatorError, PermanentFailure):
                raise
            except (RunError, Failure, OSError) as error:
                # The collector's own count is older than its last rollouts if it was killed.
                measured = max(tracker.state.measured, self._plan.existing())
                tracker.update(message=str(error).partition("\n")[0], measured=measured)
                if self._requests.ending:
                    raise EvaluationEnding from error
                started = started or tracker.state.stage in ("collection", "pause")
                stopped = isinstance(error, TooManyFailures) and tracker.state.measured <= before
                fruitless = fruitless + 1 if stopped or not started else 0
                if number == config.max_attempts or fruitless == MAX_FRUITLESS:
                    raise RunError(f"gave up after {number} attempts: {error}") from error
                tracker.print_line(f"attempt {number} failed: {error}")
                tracker.print_line(f"next attempt in {config.pause_s:g} s")
                await self._requests.pause_for(config.pause_s)
            if self._requests.ending:
                raise EvaluationEnding
        raise AssertionError("max_attempts is at least 1")

    def _announce(self, number: int) -> None:
        state = self._tracker.state
        done = f", {state.measured} of {state.expected} rollouts so far" if state.measured else ""
        if number > 1 or done:
            self._tracker.print_line(f"attempt {number} of {state.max_attempts}{done}")

    async def _write_report(self) -> None:
        if not self._plan.folder.rollouts.output.exists():
            return
        self._tracker.update(stage="report")
        self._summary = await write_report(self._plan, self._environ)
        self._report = self._plan.folder.report

    def _result(self, state: Phase, message: str, *, refused: bool) -> EvalResult:
        found = self._tracker.state
        return EvalResult(
            id=found.id,
            state=state,
            folder=self._plan.folder.root,
            report=self._report,
            measured=found.measured,
            expected=found.expected,
            failed=found.expected - found.measured if state == "incomplete" else found.failed,
            attempts=found.attempt,
            message=message,
            refused=refused,
            summary=self._summary,
        )
