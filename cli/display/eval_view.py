"""Shows an evaluation in the terminal: messages, the progress of its collection, its plan, its state and its result."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column

from rollyard.analysis.charts.labels import pluralize
from rollyard.cli.display.console import console, is_terminal
from rollyard.cli.display.progress_bar import BAR_MAX_WIDTH, BAR_MIN_WIDTH, PLAIN_EVERY_S
from rollyard.launchers.evaluation.pipeline.control.control_client import FoundEval
from rollyard.launchers.evaluation.pipeline.eval_state import FINAL, EvalState
from rollyard.launchers.evaluation.pipeline.evaluate import EvalResult
from rollyard.launchers.evaluation.pipeline.plan import EvalPlan
from rollyard.records.io.durations import duration
from rollyard.records.io.terminal import plain_line
from rollyard.records.types import CollectionStatus
from rollyard.services.rollouts.collection import max_turns


class EvalDisplay:
    """Prints messages to stderr, and the progress as a bar in a terminal, otherwise as a line every ten seconds."""

    def __init__(self, here: Path) -> None:
        self._prefix = f"{here}/"
        self._bar: Progress | None = None
        self._next = 0.0

    def print_line(self, text: str) -> None:
        self.collection_ended()
        text = text.replace(self._prefix, "")
        print(text, file=sys.stderr, flush=True)

    def show(self, status: CollectionStatus) -> None:
        if is_terminal(sys.stderr):
            self._show_bar(status)
        elif time.monotonic() >= self._next:
            if self._next:
                print(f"  {_counts(status)}  {numbers(status)}", file=sys.stderr, flush=True)
            self._next = time.monotonic() + PLAIN_EVERY_S

    def collection_ended(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show_bar(self, status: CollectionStatus) -> None:
        if self._bar is None:
            self._bar = Progress(
                TextColumn("  rollouts", table_column=Column(no_wrap=True)),
                BarColumn(bar_width=None, table_column=Column(min_width=BAR_MIN_WIDTH, max_width=BAR_MAX_WIDTH)),
                MofNCompleteColumn(table_column=Column(no_wrap=True)),
                TextColumn("{task.fields[numbers]}", table_column=Column(no_wrap=True)),
                console=console(sys.stderr),
                auto_refresh=False,
            )
            self._bar.add_task("rollouts", total=status.expected, numbers="")
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=status.measured, numbers=numbers(status))
        self._bar.refresh()


def numbers(status: CollectionStatus) -> str:
    """Format speed, time left, success rate and failures."""
    parts = [f"{status.rollouts_per_s:.1f}/s"]
    if status.eta_s is not None:
        parts.append(f"{duration(status.eta_s)} left")
    if status.successes is not None and status.measured:
        parts.append(f"success {status.successes / status.measured:.1%}")
    elif status.mean_reward is not None:
        parts.append(f"reward {status.mean_reward:.2f}")
    if status.failed_attempts:
        parts.append(f"{status.failed_attempts} failed attempts")
    if status.failed:
        parts.append(f"{status.failed} abandoned")
    return "  ".join(parts)


def _counts(status: CollectionStatus) -> str:
    return f"rollouts {status.measured}/{status.expected}"


def heading(plan: EvalPlan) -> str:
    """Return what the evaluation does, in a few lines."""
    config = plan.config
    where = {
        "served": f"served by vLLM ({plan.vllm_command[0] if plan.vllm_command else ''})",
        "endpoint": f"at {plan.source.base_url}",
        "builtin": "the built-in policy",
        "configs": "",
        "running": f"at {config.head}",
    }[plan.source.kind]
    rollouts = pluralize(plan.expected, "rollout")
    data = plan.input_jsonl_fpath or ("mixture" if not isinstance(plan.data, str) else plan.data)
    turns = _max_turns(plan)
    calls = "" if turns is None else f", at most {plan.expected * turns:,} model calls without retries"
    lines = [
        f"model      {plan.model_title}{', ' if where else ''}{where}",
        f"agent      {', '.join(sorted(plan.tasks.agents))}",
        f"data       {data}: {pluralize(plan.tasks.count, 'task')} x {config.num_repeats} = {rollouts}{calls}",
        f"folder     {plan.folder.root}",
    ]
    if config.worker is not None:
        lines.append(f"worker     {config.worker}")
    return "\n".join(plain_line(line) for line in [*lines, *(f"note: {note}" for note in plan.notes)])


def _max_turns(plan: EvalPlan) -> int | None:
    """Return the agents' largest limit of model calls in an episode; None if it is unknown."""
    if plan.run_config is None:
        return None
    agents = [spec for spec in plan.run_config.servers if spec.name in plan.tasks.agents]
    return max_turns({**spec.settings.model_dump(include={"max_steps", "max_turns"})} for spec in agents)


def print_result(result: EvalResult, folder: Path) -> None:
    """Print how the evaluation ended: the report's summary to stdout, or what went wrong to stderr."""
    if result.summary:
        print(result.summary)
    counts = f"{result.measured:,} of {result.expected:,} rollouts"
    if result.state == "complete":
        print(f"ng_eval: complete, {counts}; everything is in {folder}")
        return
    attempts = f" after {result.attempts} attempts" if result.attempts > 1 else ""
    print(f"ng_eval: {result.state}{attempts}, {counts}: {result.message}", file=sys.stderr)


def print_status(found: FoundEval) -> None:
    """Print the state of an evaluation, and how to continue if it has ended."""
    state = found.state()
    if state is None:
        print(f"{found.folder.own}: no state was written yet")
        return
    print(plain_line(f"evaluation {state.id} in {state.folder}"))
    print(f"  state      {describe(state, running=found.is_running())}")
    print(f"  stage      {state.stage}, attempt {state.attempt} of {state.max_attempts}")
    failed = f", {state.failed} failed" if state.failed else ""
    print(f"  rollouts   {state.measured} of {state.expected}{failed}")
    if state.message:
        print(f"  message    {plain_line(state.message)}")
    if state.state != "complete" and not found.is_running():
        config = found.folder.config
        print(f"  continue   {f'ng_eval {shlex.quote(str(config))}' if config.exists() else 'repeat the command'}")


def describe(state: EvalState, *, running: bool) -> str:
    """Describe the state. The state file of a killed evaluation still says that it is running."""
    if running:
        return f"{state.state} (process {state.pid}, {duration(time.time() - state.started)})"
    return state.state if state.state in FINAL else f"dead: process {state.pid} on {state.host} no longer runs"
