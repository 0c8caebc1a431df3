"""Creates the publisher of a training run: files, NCCL or CUDA IPC."""

from __future__ import annotations

from anyio.from_thread import BlockingPortal

from rollyard.records.errors import Failure, RunError
from rollyard.training.run.policy_trainer import PolicyTrainer
from rollyard.training.run_paths import TrainingPaths
from rollyard.training.train_config import TrainConfig
from rollyard.training.weights.methods import resolved_method
from rollyard.training.weights.policy_client import PolicyClient
from rollyard.training.weights.transfer_publisher import TransferPublisher
from rollyard.training.weights.version_folders import VersionFolders
from rollyard.training.weights.weight_publisher import Publisher, WeightPublisher

_STATUS_S = 60.0


def publisher_of(
    config: TrainConfig, paths: TrainingPaths, client: PolicyClient, trainer: PolicyTrainer, portal: BlockingPortal
) -> Publisher:
    """Return the publisher for `weights.method`. Raises RunError if the method is impossible."""
    settings, has_adapters = config.weights, config.optimizer.lora is not None
    try:
        status = portal.call(client.status, _STATUS_S)
    except Failure as failure:
        raise RunError(f"the policy's model server does not describe its engines: {failure}") from failure
    method = resolved_method(
        settings,
        trainer_has_gpu=trainer.has_gpu,
        engines_on_cpu=bool(status.get("on_cpu")),
        has_adapters=has_adapters,
        processes=1 if trainer.has_whole_model else 2,
    )
    if method == "files":
        folders = VersionFolders(paths.weights, keep=settings.keep)
        return WeightPublisher(
            client, folders, timeout_s=settings.timeout_s, kind="adapter" if has_adapters else "weights"
        )
    return TransferPublisher(client, trainer.sender(method), timeout_s=settings.timeout_s)
