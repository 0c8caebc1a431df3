"""ng_eval: evaluates a model, from its server to the report, and continues after any crash."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import orjson
import uvloop
from pydantic import ConfigDict, Field

from rollyard.cli.console import PLAIN_EVERY_S, RolloutBar, is_terminal
from rollyard.cli.options import (
    SHARDED,
    Options,
    check_key,
    config_path,
    is_server_setting,
    option_name,
    read_command_line,
    read_options,
    run_command,
)
from rollyard.launchers.evaluation.eval_config import EvalConfig, VllmSettings, load_eval_config
from rollyard.launchers.evaluation.eval_state import (
    FINAL,
    Action,
    ControlRequests,
    EvalFolder,
    EvalState,
    FoundEval,
    Started,
    detached,
    find_eval,
)
from rollyard.launchers.evaluation.evaluate import EvalResult, EvaluationEnding, evaluate
from rollyard.launchers.evaluation.nemo_rl import NemoRlRun, read_nemo_rl
from rollyard.launchers.evaluation.plan import EvalPlan, check, write_identity
from rollyard.launchers.evaluation.watch import (
    IDENTITY,
    EvalWatch,
    WatchControl,
    check_watch_identity,
    identity_of_watch,
    open_source,
)
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.script import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED
from rollyard.records.terminal import duration, plain_line, pluralize
from rollyard.records.types import CREATE_PARAMS, CollectionStatus
from rollyard.services.config.load import find_config
from rollyard.services.config.overrides import refuse_secrets
from rollyard.services.config.plugins import search_roots
from rollyard.services.config.settings_file import search_path
from rollyard.services.rollouts.collection import max_turns
from rollyard.services.server.settings import COMMAND_LINE, parse_settings


class EvalOptions(EvalConfig, Options):
    """The keys of the config, and options of the command."""

    model_config = ConfigDict(validate_by_name=True)
    SUBJECT: ClassVar[str] = "config_path"
    RETIRED: ClassVar[Mapping[str, str]] = SHARDED

    config_path: str | None = None
    """YAML file with the keys below, also as the first argument: in this folder, configs/ or the installed package. A
    file for NeMo-RL's evaluation is converted."""
    dry_run: bool = False
    """Check everything and print the plan; start nothing."""
    json_output: bool = Field(default=False, alias="json")
    """Print the result as one JSON line."""
    watch_pattern: str = "*"
    """With --watch: glob pattern for the names of checkpoint folders."""
    watch_marker: str | None = None
    """With --watch: name of a file that marks a complete checkpoint; default: its safetensors index is complete."""
    poll_interval_s: float = Field(default=300.0, gt=0)
    """With --watch: interval between two searches for new checkpoints, in seconds."""
    detach: bool = False
    """Run in the background; `ng_eval status|pause|resume|stop` controls it."""
    watch: str | None = None
    """Folder or S3 URL: evaluate each checkpoint that appears in it."""
    once: bool = False
    """With --watch: evaluate the existing checkpoints and return."""


_OWN = tuple(
    field.alias or name for name, field in EvalOptions.model_fields.items() if name not in EvalConfig.model_fields
)

_BELOW = {"responses_create_params": CREATE_PARAMS, "vllm": VllmSettings.model_fields}


@dataclass(frozen=True)
class EvalArguments:
    config: EvalConfig
    options: EvalOptions
    nemo_rl: NemoRlRun | None
    """The evaluation that `config` was converted from."""


def read_arguments(arguments: Sequence[str], here: Path) -> EvalArguments:
    overrides, files = read_command_line(EvalOptions, arguments, rest=True)
    known = [option_name(name, field) for name, field in EvalOptions.model_fields.items()]
    own: dict[str, Any] = {one.top: one.value for one in overrides if one.top in _OWN}
    others = [one for one in overrides if one.top not in _OWN]
    refuse_secrets(others)
    path = config_path(files, own.get("config_path"))
    roots = search_roots(here)
    found = None if path is None else find_config(path, search_path(roots))
    servers = tuple(one.text for one in others if is_server_setting(one))
    nemo_rl = read_nemo_rl(found, [one for one in others if not is_server_setting(one)], servers) if found else None
    if nemo_rl is not None:
        config = nemo_rl.eval_config
    else:
        for override in others:
            check_key(override, known, _BELOW)
        config = load_eval_config(path, [one for one in others if not is_server_setting(one)], roots)
        config = config.model_copy(update={"overrides": (*config.overrides, *servers)})
    options = parse_settings(EvalOptions, {"output_dir": config.output_dir, **own}, COMMAND_LINE)
    if options.watch is not None and (config.model or config.policy_base_url or config.head):
        raise OperatorError("--watch evaluates checkpoints, so model, policy_base_url and head must not be set")
    return EvalArguments(config, options, nemo_rl)


class EvalDisplay:
    """Prints messages to stderr, and the progress as a bar in a terminal, otherwise as a line every ten seconds."""

    def __init__(self, here: Path) -> None:
        self._prefix = f"{here}/"
        self._bar: RolloutBar | None = None
        self._next = 0.0

    def print_line(self, text: str) -> None:
        self.collection_ended()
        text = text.replace(self._prefix, "")
        print(text, file=sys.stderr, flush=True)

    def show(self, status: CollectionStatus) -> None:
        if is_terminal(sys.stderr):
            self._bar = self._bar or RolloutBar(status.expected, "  rollouts")
            self._bar.advance_to(status.measured, numbers(status))
        elif time.monotonic() >= self._next:
            if self._next:
                counts = f"rollouts {status.measured}/{status.expected}"
                print(f"  {counts}  {numbers(status)}", file=sys.stderr, flush=True)
            self._next = time.monotonic() + PLAIN_EVERY_S

    def collection_ended(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def numbers(status: CollectionStatus) -> str:
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


def heading(plan: EvalPlan) -> str:
    config = plan.config
    where = {
        "served": f"served by vLLM ({plan.served['vllm_command'][0] if plan.served else ''})",
        "endpoint": f"at {plan.source.base_url}",
        "builtin": "the built-in policy",
        "configs": "",
        "running": f"at {config.head}",
    }[plan.source.kind]
    rollouts = pluralize(plan.tasks.count * config.num_repeats, "rollout")
    data = plan.input_jsonl_fpath or ("mixture" if not isinstance(plan.data, str) else plan.data)
    turns = _max_turns(plan)
    calls = "" if turns is None else f", at most {plan.expected * turns:,} model calls without retries"
    lines = [
        f"model      {plan.model_title}{', ' if where else ''}{where}",
        f"agent      {', '.join(sorted(plan.tasks.agents))}",
        f"data       {data}: {pluralize(plan.tasks.count, 'task')} x {config.num_repeats} = {rollouts}{calls}",
        f"folder     {plan.folder.root}",
    ]
    if config.shard is not None:
        lines.append(f"shard      {config.shard}: {pluralize(plan.expected, 'rollout')}")
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
    state = found.state()
    if state is None:
        print(f"{found.folder.own}: no state was written yet")
        return
    print(plain_line(f"evaluation {state.id} in {state.folder}"))
    print(f"  state      {describe(state, running=found.is_running())}")
    print(f"  stage      {state.stage}, attempt {state.attempt} of {state.max_attempts}")
    failed = f", {state.failed} failed" if state.failed else ""
    print(f"  rollouts   {state.measured} of {state.expected}{failed}")
    if state.address and found.is_running():
        print(f"  servers    ng_status --head {state.address.removeprefix('http://')}")
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


EXAMPLE = (
    "ng_eval configs/sokoban_eval.yaml --output-dir results/my_eval --num-repeats 4\n"
    "  ng_eval --model vllm/Qwen/Qwen3-4B --environments gsm8k --output-dir results/gsm8k --detach\n"
    "  ng_eval status"
)
ACTIONS: tuple[Literal["status"] | Action, ...] = ("status", "pause", "resume", "stop")
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
    if (action := next((one for one in ACTIONS if arguments[:1] == [one]), None)) is not None:
        return _control(action, arguments[1:])
    here = Path.cwd()
    given = read_arguments(arguments, here)
    if given.options.dry_run:
        return _print_plan(given, here)
    work = _evaluate if given.options.watch is None else _watch
    if given.options.detach:
        return detached(lambda started: work(given, here, started), here / given.config.output_dir)
    return work(given, here, None)


def _print_plan(given: EvalArguments, here: Path) -> int:
    config, watch = given.config, given.options.watch
    if watch is not None:
        plan = asyncio.run(_check_watch(config, here, watch))
    elif given.nemo_rl is None:
        plan = asyncio.run(check(config, os.environ, here))
    else:
        print(*given.nemo_rl.notes(), sep="\n", end="\n" if given.nemo_rl.notes() else "")
        with given.nemo_rl.prepared_elsewhere() as prepared:
            plan = replace(asyncio.run(check(prepared, os.environ, here)), input_jsonl_fpath=config.input_jsonl_fpath)
    watched = "" if watch is None else f"watch      {watch}\n"
    print(f"{watched}{heading(plan)}\nEverything is configured correctly; nothing was started (dry_run).")
    return EXIT_DONE


def _evaluate(given: EvalArguments, here: Path, started: Started | None) -> int:
    for note in given.nemo_rl.prepare() if given.nemo_rl is not None else []:
        print(note, file=sys.stderr)
    display, requests = EvalDisplay(here), ControlRequests()

    def on_start(plan: EvalPlan, state: EvalState) -> None:
        _end_on_signals(requests, display, given.config.drain_timeout_s)
        if started is not None:
            started(state)
        display.print_line(heading(plan))

    original = None if given.nemo_rl is None else given.nemo_rl.tree
    evaluation = evaluate(
        given.config,
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
    options, folder = given.options, here / given.config.output_dir
    assert options.watch is not None
    source = open_source(options.watch, folder / "checkpoints", options.watch_pattern, options.watch_marker)
    display, loop = EvalDisplay(here), asyncio.get_running_loop()
    await _check_watch(given.config, here, options.watch)

    def on_start(control: WatchControl, state: EvalState) -> None:
        _end_on_signals(control.requests, display, given.config.drain_timeout_s, control.stopped.set)
        if started is not None:
            started(state)

    async with WatchControl.opened(folder, here, display, on_start) as control:

        def evaluate_one(config: EvalConfig) -> None:
            control.evaluates(config)
            evaluation = evaluate(
                config,
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

        identity = identity_of_watch(given.config, _address(options.watch, here))
        check_watch_identity(folder, identity)  # another watch may have written it since the check
        write_identity(folder / IDENTITY, identity)
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


def _control(action: Literal["status"] | Action, arguments: Sequence[str]) -> int:
    options, _ = read_options(ControlOptions, arguments)
    found = find_eval(Path.cwd(), options.name)
    if action != "status" and found.is_running():
        found.request(action)
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
