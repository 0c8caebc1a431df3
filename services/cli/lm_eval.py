"""ng_lm_eval: EleutherAI's harness on a policy, or on a training's checkpoints as they appear."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import uvloop
from pydantic import Field

from rollyard.services.cli.find_run import find_run
from rollyard.services.cli.options import Options, read_options, run_command
from rollyard.services.errors import OperatorError, RunError, did_you_mean
from rollyard.services.evaluation.benchmarks import QWEN3_1_7B_BASE, USUAL, Baseline, Benchmark
from rollyard.services.evaluation.checkpoint_sources import LocalSource, S3Source, Source
from rollyard.services.evaluation.evaluator import Evaluator
from rollyard.services.evaluation.lm_eval_process import Harness, Model
from rollyard.services.evaluation.lm_eval_results import as_markdown
from rollyard.services.evaluation.results_store import MOST_TRIES, Entry, ResultsStore
from rollyard.services.evaluation.task_names import check_task_names
from rollyard.services.head.client import RegistryClient
from rollyard.services.http.client import AddressBook
from rollyard.services.http.transport import HttpTransport
from rollyard.services.io.exit_status import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED
from rollyard.services.run_types import Keys

EXAMPLE = (
    "ng_lm_eval +model_server=policy_model +model=Qwen/Qwen3-4B +benchmarks=[gsm8k:8,ifeval] +output_dir=results/eval"
)
BASELINES: dict[str, tuple[Baseline, ...]] = {"none": (), "qwen3-1.7b-base": QWEN3_1_7B_BASE}


class LmEvalOptions(Options):
    """Options of ng_lm_eval."""

    model: str = ""
    """Name of the model at the endpoint; without one, the folder or name that vLLM loads."""
    model_server: str | None = None
    """A model server of the run that was started from this folder; requests go to its chat endpoint."""
    url: str | None = None
    """Or any endpoint: http://host:port/v1."""
    watch_path: str | None = None
    """Or checkpoints as they appear below a folder, here or s3://bucket/prefix, each loaded by vLLM."""
    watch_pattern: str = "*"
    """Which folders below it are checkpoints."""
    poll_interval_s: float = Field(default=300.0, gt=0)
    """How often it is looked for new ones."""
    retry_failed: bool = False
    """Try again what was given up below watch_path. Without watch_path that is always done."""
    once: bool = False
    """Evaluate the checkpoints that are there and end, instead of waiting for more."""
    benchmarks: tuple[str, ...] = Field(default=USUAL, min_length=1)
    """Tasks, each with its number of examples: gsm8k:8."""
    output_dir: Path = Path("results/lm_eval")
    """results.csv, .md and .json, logs, and what is done already: the same command goes on where it was."""
    name: str | None = None
    """What to call the model in the tables; default: its own name. In `step_40` and `checkpoint-40`, 40 is the step."""
    seed: int = 42
    """Of lm_eval's draws, and sent with every request; {seed: 7} in model_args or gen_kwargs is the requests' alone."""
    gen_kwargs: dict[str, Any] = Field(default_factory=lambda: {"temperature": 0})
    """How it samples."""
    max_gen_toks: dict[str, int] = Field(default_factory=dict)
    """Tokens that an answer may have, by task: {default: 1024, gsm8k: 512}; else lm_eval's own 256."""
    model_args: dict[str, Any] = Field(default_factory=dict)
    """More for lm_eval's model: {tensor_parallel_size: 8}. vLLM gets bfloat16, 80 % of the memory, context 4,096."""
    num_concurrent: int = Field(default=64, ge=1)
    """Requests at a time to an endpoint."""
    limit: int | None = Field(default=None, ge=1)
    """Only the first examples of each task."""
    include_path: Path | None = None
    """A folder with tasks of your own."""
    confirm_run_unsafe_code: bool = False
    """Let lm_eval run the model's code here, in no sandbox (MBPP, HumanEval)."""
    baseline: str = "none"
    """Scores to compare with: qwen3-1.7b-base, the founding experiments'."""
    lm_eval_command: tuple[str, ...] = ("lm_eval",)
    """The program, if it is not in this environment."""
    head: str | None = None
    """HOST:PORT of the head; default: the run started from this folder, then this user's at 127.0.0.1:11000."""
    token: str | None = None
    """Run token, if not in the run's folder; also read from the variable ROLLYARD_TOKEN."""


def main() -> None:
    """Entry point."""
    run_command("ng_lm_eval", LmEvalOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Score a policy on EleutherAI's lm_eval: through a running model server, or on checkpoints by vLLM."""
    options, _ = read_options(LmEvalOptions, arguments)
    _check(options)
    harness, benchmarks = _harness(options), [Benchmark.read(written) for written in options.benchmarks]
    harness.check(benchmarks)
    # What a watch measures has the checkpoints' names.
    name = None if options.watch_path is not None else _name(options)
    model = Model("", arguments=options.model_args) if name is None else _model(options)
    source = None if name is not None else _source(options)
    results_store = ResultsStore(options.output_dir)
    if options.retry_failed or name is not None:
        results_store.forget_failures(name)
    environment = _environment(options)
    if name is None or any(results_store.is_pending(name, one, harness.measured(one, model)) for one in benchmarks):
        tasks = [benchmark.task for benchmark in benchmarks]
        check_task_names(options.lm_eval_command, tasks, options.include_path, environment, _say)
    evaluator = Evaluator(
        harness=harness,
        results_store=results_store,
        benchmarks=benchmarks,
        environment=environment,
        baselines=BASELINES[options.baseline],
        say=_say,
        show=lambda text: print(f"  {text}", file=sys.stderr, flush=True),
    )
    stopped = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: _stop(stopped))
    try:
        if source is not None:
            evaluator.watch(source, model, options.poll_interval_s, stopped, once=options.once)
        elif name is not None:
            evaluator.evaluate(name, model)
    except KeyboardInterrupt:
        stopped.set()
    failed = results_store.failed([benchmark.title for benchmark in benchmarks], name)
    _summary(results_store, failed)
    if stopped.is_set():
        return EXIT_INTERRUPTED
    return EXIT_FAILED if failed else EXIT_DONE


def _say(text: str) -> None:
    print(text, flush=True)


def _stop(stopped: Event) -> None:
    stopped.set()
    raise KeyboardInterrupt


def _check(options: LmEvalOptions) -> None:
    """Raises OperatorError for options that do not go together."""
    if sum(given is not None for given in (options.model_server, options.url, options.watch_path)) > 1:
        raise OperatorError("model_server, url and watch_path are three ways to say what is evaluated: give one")
    if options.watch_path is None and not options.model:
        raise OperatorError("'model' is missing: the name of the model at the endpoint, or what vLLM loads")
    if options.watch_path is not None and (options.model or options.name):
        raise OperatorError("'model' and 'name' say nothing with watch_path: the checkpoints are what is evaluated")
    if options.url is not None and not options.url.startswith(("http://", "https://")):
        raise OperatorError(f"url is {options.url!r}; expected http://host:port/v1")
    if "/" in options.watch_pattern:
        raise OperatorError(
            f"watch_pattern is {options.watch_pattern!r}; expected a pattern of names just below watch_path, as step_*"
        )
    if options.baseline not in BASELINES:
        hint = did_you_mean(options.baseline, BASELINES)
        raise OperatorError(f"no baseline {options.baseline!r}{hint} (there is: {', '.join(BASELINES)})")


def _harness(options: LmEvalOptions) -> Harness:
    return Harness(
        command=options.lm_eval_command,
        seed=options.seed,
        gen_kwargs=options.gen_kwargs,
        max_gen_toks=options.max_gen_toks,
        limit=options.limit,
        include_path=options.include_path,
        unsafe_code=options.confirm_run_unsafe_code,
    )


def _environment(options: LmEvalOptions) -> dict[str, str]:
    environment = dict(os.environ)
    if token := options.token or os.environ.get("ROLLYARD_TOKEN"):
        environment["OPENAI_API_KEY"] = token
    # lm_eval wants one to be set, whether the endpoint asks for it or not.
    environment.setdefault("OPENAI_API_KEY", "none")
    return environment


def _name(options: LmEvalOptions) -> str:
    """What the model is called in the tables, and its folders."""
    name = options.name or Path(options.model).resolve().name
    if not name or "/" in name or name.startswith("."):
        raise OperatorError(f"name is {name!r}; expected a name for the tables, that can also be a folder's")
    return name


def _model(options: LmEvalOptions) -> Model:
    url = options.url.rstrip("/") if options.url else None
    model = Model(options.model, url, options.model_args, options.num_concurrent)
    if options.model_server is None:
        return model
    return replace(model, url=uvloop.run(_address(options, options.model_server)) + "/v1")


async def _address(options: LmEvalOptions, name: str) -> str:
    """Of a model server of the run. Raises OperatorError when there is none of that name."""
    transport = HttpTransport()
    try:
        token = options.token or os.environ.get("ROLLYARD_TOKEN")
        head = await find_run(transport, Path.cwd(), options.head, token)
        keys = Keys(run_id=head.run_id, secret="", token=head.token)
        directory = await AddressBook(RegistryClient(transport, head.url, keys).directory).refresh()
    finally:
        await transport.close()
    known = [server for server, family in directory.families.items() if family == "responses_api_models"]
    if name not in known:
        raise OperatorError(
            f"no model server {name!r}{did_you_mean(name, known)} (the run has: {', '.join(known) or 'none'})"
        )
    if not directory.servers[name]:
        raise RunError(f"model server {name!r} is not ready")
    return directory.servers[name][0]


def _source(options: LmEvalOptions) -> Source:
    place = str(options.watch_path)
    if place.startswith("s3://"):
        return S3Source(place, options.output_dir / "checkpoints", options.watch_pattern)
    if options.once and not Path(place).is_dir():
        raise OperatorError(f"watch_path {place} is no folder")
    return LocalSource(Path(place), options.watch_pattern)


def _summary(results_store: ResultsStore, failed: Sequence[Entry]) -> None:
    if results_store.scores:
        print(as_markdown(results_store.scores), end="")
        print(f"tables  {results_store.folder / 'results.csv'}, results.md, results.json")
    for entry in failed:
        given_up = f", given up after {entry.tries} tries (+retry_failed=true: try again)"
        told = given_up if entry.tries >= MOST_TRIES else ""
        print(f"failed  {entry.checkpoint} on {entry.title}{told}: {entry.error}")
