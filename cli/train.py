"""ng_train: trains a policy with GRPO on a running stack, or on one that it starts and stops."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from anyio.from_thread import start_blocking_portal
from pydantic import BaseModel, ConfigDict

from rollyard.analysis.metrics.training_steps import MetricsFile
from rollyard.analysis.tracking import MlflowTracker, WandbTracker
from rollyard.cli.options import Options, check_key, config_path, is_server_setting, read_command_line, run_command
from rollyard.records.script import EXIT_DONE, EXIT_INTERRUPTED, own_command, run_foreground
from rollyard.records.terminal import plain_line, pluralize
from rollyard.records.types import CREATE_PARAMS
from rollyard.services.config.overrides import refuse_secrets
from rollyard.services.config.plugins import search_roots
from rollyard.services.config.settings_file import load_settings
from rollyard.services.datasets.mixture import DatasetTasks
from rollyard.services.http.ray_address import ray_authentication
from rollyard.services.server.settings import COMMAND_LINE, parse_settings
from rollyard.training.metrics_log import MakeTracker, short_name, value_text
from rollyard.training.policy_trainer import PolicyTrainer, TrainerHooks
from rollyard.training.ray_trainer import run_on_ray
from rollyard.training.run_folder import TrainingFolder, TrainingPaths, completed_step, version_of_step
from rollyard.training.start_checks import TrainPlan, check
from rollyard.training.train import MainProcess, TrainingEnd, is_main_process, train
from rollyard.training.train_config import TrainConfig
from rollyard.training.training_stack import training_stack


class TrainOptions(TrainConfig, Options):
    """The keys of the config, and options of the command."""

    model_config = ConfigDict(validate_by_name=True)
    SUBJECT: ClassVar[str] = "config_path"

    config_path: str | None = None
    """YAML file with the keys below, also as the first argument: in this folder, configs/ or the installed package."""
    dry_run: bool = False
    """Check everything and print the plan; start nothing."""


_OWN = tuple(name for name in TrainOptions.model_fields if name not in TrainConfig.model_fields)
_NESTED = {
    name: field.annotation.model_fields
    for name, field in TrainConfig.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}


def read_arguments(arguments: Sequence[str], here: Path) -> tuple[TrainConfig, TrainOptions]:
    overrides, files = read_command_line(TrainOptions, arguments, rest=True)
    own: dict[str, Any] = {one.top: one.value for one in overrides if one.top in _OWN}
    others = [one for one in overrides if one.top not in _OWN]
    refuse_secrets(others)
    for override in others:
        check_key(override, list(TrainOptions.model_fields), {"responses_create_params": CREATE_PARAMS, **_NESTED})
    keys = [one for one in others if not is_server_setting(one)]
    config = load_settings(TrainConfig, config_path(files, own.get("config_path")), keys, search_roots(here))
    servers = (one.text for one in others if is_server_setting(one))
    # Absolute, because the engines read weights from it.
    output_dir = here / config.output_dir.expanduser()
    config = config.model_copy(update={"overrides": (*config.overrides, *servers), "output_dir": output_dir})
    required = {"model": config.model, "output_dir": config.output_dir}
    return config, parse_settings(TrainOptions, {**required, **own}, COMMAND_LINE)


_TRAIN = ("train/reward", "train/correct_rate", "train/parse_err_rate", "train/avg_completion_length")
_EVAL = ("eval/reward", "eval/correct_rate", "eval/parse_err_rate")
_WINDOW = 5
"""Number of updates at each end that the result averages, because a single one depends on its few tasks."""


class Messages:
    """Prints messages to stderr; metrics go to stdout."""

    def __init__(self, here: Path) -> None:
        self.here = here
        self._prefix = f"{here}/"

    def print_line(self, text: str) -> None:
        print(self.shortened(text), file=sys.stderr, flush=True)

    def shortened(self, text: str) -> str:
        return text.replace(self._prefix, "")


def heading(plan: TrainPlan) -> str:
    config, tasks = plan.config, plan.tasks
    rollouts = config.groups_per_step * config.group_size
    each = f"{pluralize(config.groups_per_step, 'task')} x {config.group_size} = {pluralize(rollouts, 'rollout')} each"
    steps = pluralize(config.max_steps, "step") if config.max_steps else f"all rows, {config.epochs} times"
    data = config.input_jsonl_fpath or (config.data if isinstance(config.data, str) else "mixture")
    evaluated = plan.evaluation_tasks
    lines = [
        f"model      {plan.model.name}, trained on {'a CPU' if plan.gpus is None else f'GPU {plan.gpus[0]}'}",
        f"agent      {', '.join(sorted(tasks.agents))}",
        f"data       {data}: {pluralize(tasks.count, 'task')}",
        f"updates    {steps} of {config.loss.algorithm}, {each}",
        f"evaluation {_evaluation(config, evaluated)}",
        f"folder     {config.output_dir}",
    ]
    return "\n".join(plain_line(line) for line in [*lines, *(f"note: {note}" for note in plan.notes)])


def _evaluation(config: TrainConfig, tasks: DatasetTasks | None) -> str:
    if tasks is None:
        return "none (evaluation.input_jsonl_fpath is not set)"
    settings = config.evaluation
    when = f"every {settings.interval} steps" if settings.interval else "at the end"
    before = "before the first step and " if settings.before_start else ""
    return f"{settings.input_jsonl_fpath}: {pluralize(tasks.count, 'task')}, {before}{when}"


def result(end: TrainingEnd, paths: TrainingPaths) -> str:
    """Return how training ended: figures before and after, and what to do next."""
    file = MetricsFile(paths.metrics)
    file.advance()
    steps = {step: file.at(step) for step in file.steps}
    done = max(
        (step for step, metrics in steps.items() if any(name.startswith("train/") for name in metrics)), default=0
    )
    lines = [*_changes(steps)]
    folder = shlex.quote(str(paths.root))
    lines.append(f"  curves     ng_viewer {folder}")
    checkpoint = paths.checkpoints / version_of_step(done)
    if checkpoint.is_dir():
        lines.append(f"  policy     {checkpoint}")
    if end == "complete":
        lines.append(f"ng_train: complete, {_updates(done)}; everything is in {paths.root}")
    else:
        lines.append(f"ng_train: interrupted after {_updates(done)}; the same command continues")
    return "\n".join(lines)


def _updates(count: int) -> str:
    return f"{count:,} update{'' if count == 1 else 's'}"


def _changes(steps: Mapping[int, Mapping[str, float]]) -> list[str]:
    """Return a line per figure that the first and the last updates, or evaluations, have in common."""
    lines = []
    for names, window in ((_TRAIN, _WINDOW), (_EVAL, 1)):
        for name in names:
            found = [(step, metrics[name]) for step, metrics in sorted(steps.items()) if name in metrics]
            if len(found) < 2:
                continue
            size = min(window, len(found) // 2)
            first, last = found[:size], found[-size:]
            before, after = (sum(value for _, value in part) / size for part in (first, last))
            title = short_name(name).replace("_", " ").replace("/", " ")
            change = f"{value_text(name, before)} -> {value_text(name, after)}"
            lines.append(f"  {title:<25} {change:<20} {_where(first, last)}")
    return lines


def _where(first: list[tuple[int, float]], last: list[tuple[int, float]]) -> str:
    if len(first) > 1:
        return f"(means of updates {first[0][0]} to {first[-1][0]}, and {last[0][0]} to {last[-1][0]})"
    before = "before training" if first[0][0] == 0 else f"after update {first[0][0]}"
    return f"({before}, and after update {last[0][0]})"


EXAMPLE = (
    "ng_train configs/train_sokoban.yaml --output-dir results/my_training --max-steps 80\n"
    "  ng_train --model Qwen/Qwen3-0.6B --environments gsm8k --input gsm8k_train.jsonl --output results/gsm8k"
)

TRACKERS: dict[str, MakeTracker] = {"wandb": WandbTracker, "mlflow": MlflowTracker}
RANK = "RANK"
"""Variable that accelerate and torchrun set in each of several processes."""
LAUNCHED = "ROLLYARD_TRAIN_LAUNCHED"
"""Variable of processes that accelerate has started for this command; it starts a single one without RANK."""


def main() -> None:
    run_command("ng_train", TrainOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Train a policy with GRPO: play episodes in environments, update the policy from their rewards, and bring the new
    weights to the engines. Starts the servers and a vLLM engine, unless `head` names a running stack, and stops them at
    the end. A run that was interrupted or crashed continues if the command is repeated.
    """
    here = Path.cwd()
    (config, options), messages = read_arguments(arguments, here), Messages(here)
    if not is_main_process(os.environ):
        _quiet_libraries()
        return _status(train(config, None, partial(_trainer, config), print_line=messages.print_line))
    plan = asyncio.run(check(config, os.environ, here))
    if options.dry_run:
        print(messages.shortened(heading(plan)))
        print("Everything is configured correctly; nothing was started (dry_run).")
        return EXIT_DONE
    if RANK not in os.environ and (step := completed_step(config)) is not None:
        print(
            f"{messages.shortened(str(config.output_dir))}: training was complete after {step:,} updates. A larger "
            "max_steps continues it"
        )
        print(messages.shortened(result("complete", plan.paths)))
        return EXIT_DONE
    if config.trainer_num_gpus is not None:
        return _run_on_ray(config, arguments, messages)
    if config.optimizer.accelerate_config is not None and not {RANK, LAUNCHED} & os.environ.keys():
        return _launch(config.optimizer.accelerate_config, arguments)
    messages.print_line(heading(plan))
    # While servers start, SIGTERM ends them as Ctrl-C does; `train` has handlers of its own.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    end = _train(plan, arguments, messages)
    print(messages.shortened(result(end, plan.paths)), flush=True)
    return _status(end)


def _train(plan: TrainPlan, arguments: Sequence[str], messages: Messages) -> TrainingEnd:
    config, print_line, environ = plan.config, messages.print_line, dict(os.environ)
    if plan.gpus is not None and RANK not in environ:
        # Otherwise, the Trainer would also use the GPUs of the engines.
        os.environ["CUDA_VISIBLE_DEVICES"] = plan.gpus[0]
    command = ["ng_train", *arguments]
    with TrainingFolder.opened(config, command=command, project=plan.here, print_line=print_line) as folder:
        model = plan.model.fetch()
        _quiet_libraries()
        with start_blocking_portal(backend_options={"use_uvloop": True}) as portal:
            stack = training_stack(config, plan.paths, environ, model, print_line=print_line)
            with portal.wrap_async_context_manager(stack) as running:
                main = MainProcess(folder, portal, running, plan.tasks, plan.evaluation_tasks, trackers=TRACKERS)
                return train(config, main, partial(_trainer, config), print_line=print_line)


def _trainer(config: TrainConfig, hooks: TrainerHooks) -> PolicyTrainer:
    from rollyard.training.trl.policy_trainer import TrlPolicyTrainer  # with torch, which takes seconds

    return TrlPolicyTrainer(config, config.output_dir / "trl", hooks)


def _quiet_libraries() -> None:
    """Silence progress bars, and warnings that do not concern the user of a command."""
    # The trainer does not use TRL's vLLM client.
    warnings.filterwarnings("ignore", message="TRL currently supports vLLM versions")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _run_on_ray(config: TrainConfig, arguments: Sequence[str], messages: Messages) -> int:
    """Run this command in an actor of the Ray cluster."""
    assert config.ray_head_node_address is not None and config.trainer_num_gpus is not None
    # An argument of the file or of the command line would place the trainer in another actor.
    command = own_command("ng_train", *arguments, "trainer_num_gpus=null")

    def write(output: bytes) -> None:
        sys.stdout.buffer.write(output)
        sys.stdout.flush()

    os.environ.update(ray_authentication(config.ray_head_node_address, os.environ))  # Ray reads it at its import
    status = run_on_ray(
        *(config.ray_head_node_address, command, config.trainer_num_gpus, messages.here, os.environ),
        write=write,
        print_line=messages.print_line,
    )
    return 128 - status if status < 0 else status


def _launch(config: Path, arguments: Sequence[str]) -> int:
    """Run this command in each of the processes of accelerate's config file."""
    os.environ[LAUNCHED] = "1"
    launcher = ["accelerate.commands.launch", "--config_file", str(config), "-m", "rollyard.cli.entry"]
    return run_foreground([sys.executable, "-m", *launcher, "ng_train", *arguments])


def _status(end: TrainingEnd) -> int:
    return EXIT_DONE if end == "complete" else EXIT_INTERRUPTED
