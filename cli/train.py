"""ng_train: trains a policy with GRPO on a running stack, or on one that it starts and stops."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from anyio.from_thread import start_blocking_portal

from rollyard.cli.arguments.train_arguments import TrainOptions, read_arguments
from rollyard.cli.display.train_view import Messages, result
from rollyard.cli.options import run_command
from rollyard.records.io.exit_status import EXIT_DONE, EXIT_INTERRUPTED
from rollyard.records.io.foreground import run_foreground
from rollyard.records.io.own_command import own_command
from rollyard.services.http.ray_address import ray_authentication
from rollyard.training.run.ray_trainer import run_on_ray
from rollyard.training.run.run_folder import RunFolder, completed_step
from rollyard.training.run.run_training import TrainingEnd
from rollyard.training.run.start_checks import check
from rollyard.training.run.train import MainProcess, is_main_process, train
from rollyard.training.run.train_plan import TrainPlan
from rollyard.training.stack.start_stack import training_stack
from rollyard.training.train_config import TrainConfig
from rollyard.training.trl.quiet import quiet_libraries

EXAMPLE = (
    "ng_train configs/train_sokoban.yaml --output-dir results/my_training --max-steps 80\n"
    "  ng_train --model Qwen/Qwen3-0.6B --environments gsm8k --input gsm8k_train.jsonl --output results/gsm8k"
)

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
    given = read_arguments(arguments, here)
    config, messages = given.config, Messages(here)
    if not is_main_process(os.environ):
        quiet_libraries()
        return _status(train(config, None, print_line=messages.print_line))
    plan = asyncio.run(check(config, os.environ, here))
    if given.options.dry_run:
        print(messages.shortened(plan.heading()))
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
    messages.print_line(plan.heading())
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
    with RunFolder.opened(config, command=command, project=plan.here, print_line=print_line) as folder:
        model = plan.model.fetch()
        quiet_libraries()
        with start_blocking_portal(backend_options={"use_uvloop": True}) as portal:
            stack = training_stack(config, plan.paths, environ, model, print_line=print_line)
            with portal.wrap_async_context_manager(stack) as running:
                main = MainProcess(folder, portal, running, plan.tasks, plan.evaluation_tasks)
                return train(config, main, print_line=print_line)


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
