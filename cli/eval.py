"""ng_eval: evaluates a model, from its server to the report, and continues after any crash."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import orjson
import uvloop
from pydantic import Field

from rollyard.cli.arguments.eval_arguments import EvalArguments, EvalOptions, read_arguments
from rollyard.cli.display.eval_view import EvalDisplay, heading, print_result, print_status
from rollyard.cli.options import Options, read_options, run_command
from rollyard.launchers.evaluation.checkpoints.eval_watch import EvalWatch, open_source
from rollyard.launchers.evaluation.checkpoints.watch_control import WatchControl
from rollyard.launchers.evaluation.checkpoints.watch_identity import (
    check_watch_identity,
    identity_of_watch,
    write_watch_identity,
)
from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.eval_folder import EvalFolder
from rollyard.launchers.evaluation.pipeline.checks import check
from rollyard.launchers.evaluation.pipeline.control.control_client import FoundEval, find_eval
from rollyard.launchers.evaluation.pipeline.control.control_requests import ControlRequests
from rollyard.launchers.evaluation.pipeline.control.detach import Started, detached
from rollyard.launchers.evaluation.pipeline.eval_state import EvalState
from rollyard.launchers.evaluation.pipeline.evaluate import evaluate
from rollyard.launchers.evaluation.pipeline.plan import EvalPlan
from rollyard.launchers.evaluation.pipeline.stages.running_stages import EvaluationEnding
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.io.exit_status import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED

EXAMPLE = (
    "ng_eval configs/sokoban_eval.yaml --output-dir results/my_eval --num-repeats 4\n"
    "  ng_eval --model vllm/Qwen/Qwen3-4B --environments gsm8k --output-dir results/gsm8k --detach\n"
    "  ng_eval status"
)
ACTIONS = ("status", "pause", "resume", "stop")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class ControlOptions(Options):
    SUBJECT: ClassVar[str] = "name"

    name: str | None = None
    """Id or folder of the evaluation; default: the newest one that was started from this folder."""
    json_output: bool = Field(default=False, alias="json")
    """Print the state as one JSON line."""


def main() -> None:
    run_command("ng_eval", EvalOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Evaluate a model: serve it, start the servers, collect rollouts and write a report. An evaluation that was
    interrupted or crashed continues if the command is repeated. With --detach, it runs in the background;
    `ng_eval status|pause|resume|stop [ID or folder]` control it. With --watch DIR, it evaluates each checkpoint that
    appears in a folder or at an S3 URL.
    """
    if arguments and arguments[0] in ACTIONS:
        return _control(arguments[0], arguments[1:])
    here = Path.cwd()
    given = read_arguments(arguments, here)
    if given.options.dry_run:
        return _print_plan(given, here)
    work = _evaluate if given.watch is None else _watch
    if given.detach:
        return detached(lambda started: work(given, here, started), here / given.config.output_dir)
    return work(given, here, None)


def _print_plan(given: EvalArguments, here: Path) -> int:
    config = given.config
    if given.watch is not None:
        plan = asyncio.run(_check_watch(config, here, given.watch))
    elif given.nemo_rl is None:
        plan = asyncio.run(check(config, os.environ, here))
    else:
        print(*given.nemo_rl.notes(), sep="\n", end="\n" if given.nemo_rl.notes() else "")
        with given.nemo_rl.prepared_elsewhere() as prepared:
            plan = replace(asyncio.run(check(prepared, os.environ, here)), input_jsonl_fpath=config.input_jsonl_fpath)
    watched = "" if given.watch is None else f"watch      {given.watch}\n"
    print(f"{watched}{heading(plan)}\nEverything is configured correctly; nothing was started (dry_run).")
    return EXIT_DONE


def _prepare(given: EvalArguments) -> list[str]:
    """Prepare what another tool's config needs, and return notes."""
    return given.nemo_rl.prepare() if given.nemo_rl is not None else []


def _evaluate(given: EvalArguments, here: Path, started: Started | None) -> int:
    for note in _prepare(given):
        print(note, file=sys.stderr)
    display, requests = EvalDisplay(here), ControlRequests()

    def on_start(plan: EvalPlan, state: EvalState) -> None:
        _end_on_signals(requests, display, given.config.drain_timeout_s)
        if started is not None:
            started(state)
        display.print_line(heading(plan))

    original = None if given.nemo_rl is None else given.nemo_rl.tree
    evaluation = evaluate(
        *(given.config,),
        environ=os.environ,
        here=here,
        observer=display,
        requests=requests,
        on_start=on_start,
        original=original,
    )
    result = uvloop.run(evaluation)
    if given.options.json_output:
        print(orjson.dumps(result.model_dump(mode="json", exclude={"summary"})).decode())
    else:
        print_result(result, result.folder)
    if given.nemo_rl is not None and result.state == "complete":
        text = given.nemo_rl.finish(EvalFolder(result.folder).rollouts.output)
        print(text, file=sys.stderr if given.options.json_output else sys.stdout)
    return result.exit_status


def _watch(given: EvalArguments, here: Path, started: Started | None) -> int:
    """Evaluate checkpoints as they appear, until a signal or `ng_eval stop` arrives."""
    return uvloop.run(_watch_checkpoints(given, here, started))


async def _watch_checkpoints(given: EvalArguments, here: Path, started: Started | None) -> int:
    assert given.watch is not None
    options, folder = given.options, here / given.config.output_dir
    source = open_source(given.watch, folder / "checkpoints", options.watch_pattern, options.watch_marker)
    display, loop = EvalDisplay(here), asyncio.get_running_loop()
    await _check_watch(given.config, here, given.watch)

    def on_start(control: WatchControl, state: EvalState) -> None:
        _end_on_signals(control.requests, display, given.config.drain_timeout_s, control.stopped.set)
        if started is not None:
            started(state)

    async with WatchControl.opened(folder, here, display, on_start) as control:

        def evaluate_one(config: EvalConfig) -> None:
            control.evaluates(config)
            evaluation = evaluate(
                *(config,),
                environ=os.environ,
                here=here,
                observer=display,
                requests=control.requests,
                on_start=lambda plan, state: display.print_line(heading(plan)),
            )
            result = asyncio.run_coroutine_threadsafe(evaluation, loop).result()
            if result.exit_status == EXIT_INTERRUPTED:
                raise EvaluationEnding
            if result.state != "complete":
                raise (OperatorError if result.refused else RunError)(result.message)

        identity = identity_of_watch(given.config, _address(given.watch, here))
        check_watch_identity(folder, identity)  # another watch may have written it since the check
        write_watch_identity(folder, identity)
        config = given.config.model_copy(update={"output_dir": folder})
        watch = EvalWatch(config, source, evaluate_one, poll_s=options.poll_interval_s, print_line=display.print_line)
        with contextlib.suppress(EvaluationEnding):
            await asyncio.to_thread(watch.run, control.stopped, once=options.once)
        if control.requests.ending:
            return EXIT_INTERRUPTED
        return EXIT_DONE if watch.is_complete else EXIT_FAILED


def _address(watch: str, here: Path) -> str:
    return watch.rstrip("/") if "://" in watch else str((here / watch).resolve())


async def _check_watch(config: EvalConfig, here: Path, watch: str) -> EvalPlan:
    """Check the config of a watch with an empty model in place of a checkpoint. Raises OperatorError."""
    check_watch_identity(here / config.output_dir, identity_of_watch(config, _address(watch, here)))
    vllm = config.vllm.model_copy(update={"served_model_name": "each checkpoint"})
    with tempfile.TemporaryDirectory(prefix="ng-eval-watch-") as model:
        (Path(model) / "config.json").write_text("{}")
        return await check(config.model_copy(update={"model": f"vllm/{model}", "vllm": vllm}), os.environ, here)


def _end_on_signals(
    requests: ControlRequests, display: EvalDisplay, drain_s: float, also: Callable[[], None] = lambda: None
) -> None:
    def interrupt() -> None:
        if not requests.ending:
            display.print_line(f"finishing the episodes in flight, at most {drain_s:g} s; Ctrl-C again abandons them")
        requests.interrupt()
        also()

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, interrupt)


def _control(action: str, arguments: Sequence[str]) -> int:
    options, _ = read_options(ControlOptions, arguments)
    found = find_eval(Path.cwd(), options.name)
    if action != "status" and found.is_running():
        found.call("POST", f"/{action}")
        _wait(found, action)
    elif action in ("pause", "resume"):
        raise RunError(f"the evaluation in {found.folder.own} is not running: repeat its command to continue it")
    state = found.state()
    if options.json_output:
        shown = {} if state is None else state.model_dump(mode="json")
        print(orjson.dumps({**shown, "running": found.is_running()}).decode())
    else:
        print_status(found)
    return EXIT_DONE if state is not None and (found.is_running() or state.state in ENDED_AS_ASKED) else EXIT_FAILED


ENDED_AS_ASKED = ("complete", "stopped")


def _wait(found: FoundEval, action: str) -> None:
    if action == "stop":
        print("stopping ...", file=sys.stderr, flush=True)
        found.wait(lambda state: False)
    elif action == "pause":
        print("finishing the episodes in flight ...", file=sys.stderr, flush=True)
        found.wait(lambda state: state.state == "paused")
    else:
        found.wait(lambda state: state.state != "paused")
