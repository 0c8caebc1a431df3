"""ng_lm_eval: runs EleutherAI's lm_eval on a policy, or on the checkpoints of a training run as they appear."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import uvloop
from pydantic import Field

from rollyard.cli.options import Options, read_options, run_command
from rollyard.launchers.evaluation.checkpoints import LocalSource, S3Source, Source
from rollyard.launchers.evaluation.lm_eval import (
    MAX_ATTEMPTS,
    QWEN3_1_7B_BASE,
    USUAL,
    Baselines,
    Benchmark,
    Entry,
    Harness,
    LmEvaluator,
    Model,
    ResultsStore,
    as_markdown,
    check_task_names,
)
from rollyard.records.errors import OperatorError, RunError, did_you_mean
from rollyard.records.run_types import Keys
from rollyard.records.script import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED
from rollyard.records.variables import variable
from rollyard.services.head.registry_client import RegistryClient
from rollyard.services.http.client import AddressBook
from rollyard.services.http.transport import HttpTransport
from rollyard.services.runtime.run_dir import find_run

EXAMPLE = (
    "ng_lm_eval --model-server policy_model --model Qwen/Qwen3-4B --benchmarks gsm8k:8,ifeval --output-dir results/eval"
)
BASELINES: dict[str, Baselines] = {"none": {}, "qwen3-1.7b-base": QWEN3_1_7B_BASE}


class LmEvalOptions(Options):
    model: str = ""
    """Name of the model at the endpoint. Without an endpoint: the folder or model name that vLLM loads."""
    model_server: str | None = None
    """Name of a model server in the running stack; requests go to its chat endpoint."""
    url: str | None = None
    """URL of an endpoint to use instead of model_server: http://host:port/v1."""
    watch_path: str | None = None
    """Local folder or s3://bucket/prefix to watch instead of an endpoint; vLLM loads each checkpoint in it."""
    watch_pattern: str = "*"
    """Glob pattern for the names of checkpoint folders."""
    poll_interval_s: float = Field(default=300.0, gt=0)
    """Time between searches for new checkpoints, in seconds."""
    retry_failed: bool = False
    """Retry permanently failed evaluations of checkpoints in watch_path. Without watch_path, this is always done."""
    once: bool = False
    """Evaluate the existing checkpoints and exit instead of waiting for more."""
    benchmarks: tuple[str, ...] = Field(default=USUAL, min_length=1)
    """lm_eval tasks, optionally with the number of few-shot examples: gsm8k:8."""
    output_dir: Path = Path("results/lm_eval")
    """Folder for results.csv, .md and .json, logs and finished evaluations; rerunning the command skips these."""
    name: str | None = None
    """Name of the model in the tables; default: `model`. In `step_40` and `checkpoint-40`, 40 is the training step."""
    seed: int = 42
    """Seed for lm_eval and for every request; {seed: 7} in model_args or gen_kwargs sets only the requests' seed."""
    gen_kwargs: dict[str, Any] = Field(default_factory=lambda: {"temperature": 0})
    """Sampling parameters."""
    max_gen_toks: dict[str, int] = Field(default_factory=dict)
    """Maximum number of tokens per answer, by task: {default: 1024, gsm8k: 512}; lm_eval's own default is 256."""
    model_args: dict[str, Any] = Field(default_factory=dict)
    """Additional model_args for lm_eval, such as {tensor_parallel_size: 8}. By default, vLLM uses bfloat16, 80% of the
    GPU memory and a context length of 4,096."""
    num_concurrent: int = Field(default=64, ge=1)
    """Number of concurrent requests to an endpoint."""
    limit: int | None = Field(default=None, ge=1)
    """Use only this many examples of each task."""
    include_path: Path | None = None
    """Folder with custom lm_eval tasks."""
    confirm_run_unsafe_code: bool = False
    """Allow lm_eval to run the model's code on this host without a sandbox (MBPP, HumanEval)."""
    baseline: str = "none"
    """Baseline scores to compare with: none or qwen3-1.7b-base."""
    lm_eval_command: tuple[str, ...] = ("lm_eval",)
    """The lm_eval command, for example if it is installed in a different virtual environment."""
    head: str | None = None
    """HOST:PORT of the head; default: a run started here or in a parent folder, else this user's on port 11000."""
    token: str | None = None
    """Run token, if it is not stored in the run's folder; also read from the environment variable ROLLYARD_TOKEN."""


def main() -> None:
    run_command("ng_lm_eval", LmEvalOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Evaluate a policy with EleutherAI's lm_eval: a running model server, or checkpoints loaded by vLLM."""
    options, _ = read_options(LmEvalOptions, arguments)
    _check(options)
    harness, benchmarks = _harness(options), [Benchmark.read(text) for text in options.benchmarks]
    harness.check(benchmarks)
    # Results of watch_path are named after the checkpoints.
    name = None if options.watch_path is not None else _name(options)
    model = Model("", arguments=options.model_args) if name is None else _model(options)
    source = None if name is not None else _source(options)
    results_store = ResultsStore(options.output_dir)
    if options.retry_failed or name is not None:
        results_store.forget_failures(name)
    environment = _environment(options)
    if name is None or any(results_store.is_pending(name, one, harness.measured(one, model)) for one in benchmarks):
        tasks = [benchmark.task for benchmark in benchmarks]
        check_task_names(options.lm_eval_command, tasks, options.include_path, environment, _print_line)
    evaluator = LmEvaluator(
        harness=harness,
        results_store=results_store,
        benchmarks=benchmarks,
        environment=environment,
        baselines=BASELINES[options.baseline],
        print_line=_print_line,
        show=lambda text: print(f"  {text}", file=sys.stderr, flush=True),
    )
    stopped = Event()

    def stop(*_: object) -> None:
        stopped.set()
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
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


_print_line = partial(print, flush=True)


def _check(options: LmEvalOptions) -> None:
    """Raise OperatorError if an option is missing or invalid, or if options cannot be combined."""
    if sum(given is not None for given in (options.model_server, options.url, options.watch_path)) > 1:
        raise OperatorError("pass only one of model_server, url and watch_path")
    if options.watch_path is None and not options.model:
        raise OperatorError("'model' is missing: pass the model's name at the endpoint, or what vLLM should load")
    if options.watch_path is not None and (options.model or options.name):
        raise OperatorError("'model' and 'name' cannot be combined with watch_path, which evaluates checkpoints")
    if options.url is not None and not options.url.startswith(("http://", "https://")):
        raise OperatorError(f"url is {options.url!r}; expected http://host:port/v1")
    if "/" in options.watch_pattern:
        found = repr(options.watch_pattern)
        raise OperatorError(f"watch_pattern is {found}; expected a name pattern without /, such as step_*")
    if options.baseline not in BASELINES:
        hint = did_you_mean(options.baseline, BASELINES)
        raise OperatorError(f"unknown baseline {options.baseline!r}{hint} (available: {', '.join(BASELINES)})")


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
    token = options.token or variable(os.environ, "ROLLYARD_TOKEN")
    # lm_eval requires a key even if the endpoint does not.
    return {"OPENAI_API_KEY": "none", **os.environ, **({"OPENAI_API_KEY": token} if token else {})}


def _name(options: LmEvalOptions) -> str:
    """Return the model's name for tables and folders. Raises OperatorError if it is not a valid folder name."""
    name = options.name or Path(options.model).resolve().name
    if not name or "/" in name or name.startswith("."):
        raise OperatorError(f"name is {name!r}; expected a valid folder name")
    return name


def _model(options: LmEvalOptions) -> Model:
    url = options.url.rstrip("/") if options.url else None
    if options.model_server is not None:
        url = uvloop.run(_address(options, options.model_server)) + "/v1"
    return Model(options.model, url, options.model_args, options.num_concurrent)


async def _address(options: LmEvalOptions, name: str) -> str:
    """Return the URL of a model server. Raises OperatorError if it does not exist, RunError if it is not ready."""
    transport = HttpTransport()
    try:
        token = options.token or variable(os.environ, "ROLLYARD_TOKEN")
        head = await find_run(transport, Path.cwd(), options.head, token)
        keys = Keys(run_id=head.run_id, secret="", token=head.token)
        directory = await AddressBook(RegistryClient(transport, head.url, keys).directory).refresh()
    finally:
        await transport.close()
    known = [server for server, family in directory.families.items() if family == "responses_api_models"]
    if name not in known:
        raise OperatorError(
            f"no model server {name!r} in this run{did_you_mean(name, known)} (available: {', '.join(known) or 'none'})"
        )
    if not directory.servers[name]:
        raise RunError(f"model server {name!r} is not ready")
    return directory.servers[name][0]


def _source(options: LmEvalOptions) -> Source:
    path = str(options.watch_path)
    if path.startswith("s3://"):
        return S3Source(path, options.output_dir / "checkpoints", options.watch_pattern)
    if options.once and not Path(path).is_dir():
        raise OperatorError(f"watch_path {path} is not a folder")
    return LocalSource(Path(path), options.watch_pattern)


def _summary(results_store: ResultsStore, failed: Sequence[Entry]) -> None:
    if results_store.scores:
        print(as_markdown(results_store.scores), end="")
        print(f"tables  {results_store.folder / 'results.csv'}, results.md, results.json")
    for entry in failed:
        note = f", abandoned after {entry.tries} tries (retry with --retry-failed)"
        suffix = note if entry.tries >= MAX_ATTEMPTS else ""
        print(f"failed  {entry.checkpoint} on {entry.title}{suffix}: {entry.error}")
