"""A TrainConfig as the settings of TRL's GRPOTrainer."""

from __future__ import annotations

from pathlib import Path

from peft import LoraConfig
from trl import GRPOConfig

from rollyard.training.train_config import LoraSettings, TrainConfig

UNLIMITED_STEPS = 10**9
"""Number of steps if the end of the data ends the training."""


def temperature_of(config: TrainConfig) -> float:
    """Return the temperature at which rollouts are sampled and log-probabilities are computed."""
    return float(config.responses_create_params.get("temperature", 1.0))


def grpo_config(config: TrainConfig, folder: Path) -> GRPOConfig:
    """Return TRL's settings. `folder`: where the trainer may write files."""
    algorithm, optimizer = config.loss.resolved, config.optimizer
    return GRPOConfig(
        output_dir=str(folder),
        seed=config.seed,
        max_steps=config.max_steps or UNLIMITED_STEPS,
        loss_type=algorithm.loss_type,
        importance_sampling_level=algorithm.ratio,
        epsilon=algorithm.epsilon,
        epsilon_high=algorithm.epsilon_high,
        scale_rewards=algorithm.scale,
        beta=algorithm.beta,
        temperature=temperature_of(config),
        max_completion_length=config.loss.length_constant or optimizer.max_seq_len,
        learning_rate=optimizer.learning_rate,
        lr_scheduler_type=optimizer.lr_scheduler,
        warmup_steps=optimizer.warmup_steps,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
        bf16=False,  # the weights have their type from the start; autocast would be a second setting for the same thing
        gradient_checkpointing=optimizer.gradient_checkpointing,
        # One step of the Trainer is one update: RolloutTrainer makes the micro-batches itself. 2 is TRL's minimum.
        per_device_train_batch_size=2,
        num_generations=2,
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        ignore_data_skip=True,  # the position in the data is that of the rollouts
        save_strategy="no",
        logging_strategy="steps",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        disable_dropout=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )


def lora_config(settings: LoraSettings) -> LoraConfig:
    """Return peft's settings of the adapters."""
    modules = settings.target_modules
    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=modules if isinstance(modules, str) else list(modules),
        task_type="CAUSAL_LM",
    )
