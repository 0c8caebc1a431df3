"""train: everything from a running stack and a config to a finished run folder."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from anyio.from_thread import BlockingPortal

from rollyard.services.datasets.tasks import Tasks
from rollyard.training.play.batch_source import StackBatchSource
from rollyard.training.run.evaluator import Evaluator
from rollyard.training.run.policy_trainer import PolicyTrainer, TrainerHooks
from rollyard.training.run.publishers import publisher_of
from rollyard.training.run.run_folder import RunFolder
from rollyard.training.run.run_training import TrainingEnd, run_other_process, run_training
from rollyard.training.run.stack_parts import MeasureParity, StackParts
from rollyard.training.run_paths import TrainingPaths
from rollyard.training.stack.training_stack import TrainingStack
from rollyard.training.train_config import TrainConfig
from rollyard.training.weights.parity import ParityProbe
from rollyard.training.weights.policy_client import PolicyClient
from rollyard.training.weights.transfer_publisher import TransferPublisher


@dataclass(frozen=True, slots=True)
class MainProcess:
    """What only the main process of a training has."""

    folder: RunFolder
    portal: BlockingPortal
    """Runs coroutines in the event loop of the stack's clients."""
    stack: TrainingStack
    tasks: Tasks
    """The dataset to train on."""
    evaluation_tasks: Tasks | None = None
    """The dataset to evaluate on; None: no evaluation."""
    seeded: bool = False
    """Send a sampling seed with each rollout, for engines whose sampling is deterministic."""


def is_main_process(environ: Mapping[str, str]) -> bool:
    """Return whether this process of `accelerate launch` or `torchrun` is the main one."""
    return environ.get("RANK", "0") == "0"


def train(config: TrainConfig, main: MainProcess | None, *, print_line: Callable[[str], None]) -> TrainingEnd:
    """Train until the last step, the end of the data, or a signal. Must be called in the main thread.

    `main` is None in all processes but the main one. SIGINT and SIGTERM end training after the current update, with a
    checkpoint; the result is then `interrupted`. The same command resumes it.

    Raises OperatorError if the model or a setting is wrong, and RunError if training cannot continue; there is a
    checkpoint of the last complete update then.
    """
    paths = TrainingPaths(config.output_dir)
    make_trainer = partial(_make_trainer, config, paths)
    if main is None:
        return run_other_process(config, make_trainer, print_line=print_line)
    evaluated = main.evaluation_tasks
    main.folder.check_data(main.tasks.identity, evaluated.identity if evaluated is not None else None)
    make_parts = partial(_make_parts, config, main, print_line)
    return run_training(main.folder, main.portal, make_parts, make_trainer, print_line=print_line)


def _make_trainer(config: TrainConfig, paths: TrainingPaths, hooks: TrainerHooks) -> PolicyTrainer:
    with warnings.catch_warnings():
        # About TRL's own use of vLLM. Here, the engines are behind the model server.
        warnings.filterwarnings("ignore", message="TRL currently supports vLLM versions")
        from rollyard.training.trl.policy_trainer import TrlPolicyTrainer
    return TrlPolicyTrainer(config, paths.root / "trl", hooks)


def _make_parts(
    config: TrainConfig,
    main: MainProcess,
    print_line: Callable[[str], None],
    position: Mapping[str, int],
    trainer: PolicyTrainer,
) -> StackParts:
    stack, paths = main.stack, main.folder.paths
    client = PolicyClient(stack.clients.client.transport, stack.policy_url, stack.token, config.policy_server)
    evaluate = None
    if main.evaluation_tasks is not None:
        evaluator = Evaluator(stack.clients, main.evaluation_tasks, config, paths, print_line=print_line)
        evaluate = evaluator.evaluate
    source = StackBatchSource(stack, main.tasks, config, paths, position, seeded=main.seeded, print_line=print_line)
    publisher = publisher_of(config, paths, client, trainer, main.portal)

    async def close() -> None:
        await source.close()
        if isinstance(publisher, TransferPublisher):
            await publisher.close()

    return StackParts(
        source=source,
        publisher=publisher,
        evaluate=evaluate,
        measure_parity=_parity(client, trainer, config) if trainer.has_whole_model else None,
        close=close,
    )


def _parity(client: PolicyClient, trainer: PolicyTrainer, config: TrainConfig) -> MeasureParity:
    probe = ParityProbe(client, trainer.log_probs, config.weights, dtype=config.optimizer.dtype)

    async def measure(updates: int, version: str, sequences: Sequence[Sequence[int]]) -> Mapping[str, float]:
        if not await probe.is_due(updates):
            return {}
        found = await probe.measure(version, sequences)
        return {"mean": found.mean, "max": found.max}

    return measure
