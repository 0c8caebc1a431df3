"""TrlPolicyTrainer: loads the policy, trains it with RolloutTrainer, and writes weights and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.utils.logging import disable_progress_bar
from trl import GRPOConfig

from rollyard.records.errors import OperatorError
from rollyard.training.policy_trainer import Save, TrainerHooks
from rollyard.training.train_config import LoraSettings, TrainConfig
from rollyard.training.transfer_publisher import TransferMethod, WeightSender
from rollyard.training.trl.rollout_trainer import RolloutTrainer
from rollyard.training.trl.save_policy import gather_policy, write_errors
from rollyard.training.trl.weight_senders import IpcSender, NcclSender, model_tensors
from rollyard.training.update import TokenPairs


class TrlPolicyTrainer:
    """Implements `PolicyTrainer`."""

    def __init__(self, config: TrainConfig, folder: Path, hooks: TrainerHooks) -> None:
        """`folder`: where TRL may write files. Raises OperatorError if the model cannot be loaded."""
        disable_progress_bar()  # one for each version of the weights that is written
        lora = config.optimizer.lora
        self._has_adapters = lora is not None
        # Before the model is loaded: it initializes accelerate with the processes of the launcher.
        arguments = grpo_config(config, folder)
        self._trainer = RolloutTrainer(
            model=_loaded(AutoModelForCausalLM, config.model, "model", dtype=config.optimizer.dtype),
            args=arguments,
            processing_class=_loaded(AutoTokenizer, config.model, "the tokenizer of"),
            next_update=hooks.next_update,
            micro_token_budget=config.optimizer.micro_token_budget,
            max_importance_weight=config.loss.max_importance_weight,
            iterations=config.optimizer.num_iterations,
            peft_config=None if lora is None else lora_config(lora),
            callbacks=[_HookCallback(hooks)],
        )

    @property
    def is_main(self) -> bool:
        return bool(self._trainer.accelerator.is_main_process)

    @property
    def step(self) -> int:
        return int(self._trainer.state.global_step)

    @property
    def metrics(self) -> dict[str, float]:
        return self._trainer.update_metrics

    @property
    def token_pairs(self) -> TokenPairs | None:
        return self._trainer.token_pairs

    @property
    def has_whole_model(self) -> bool:
        return not self._trainer.is_fsdp_enabled and not self._trainer.is_deepspeed_enabled

    @property
    def has_gpu(self) -> bool:
        return bool(self._trainer.accelerator.device.type == "cuda")

    def sender(self, method: TransferMethod) -> WeightSender:
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        return (NcclSender if method == "nccl" else IpcSender)(partial(model_tensors, model))

    def share(self, text: str | None) -> str | None:
        found = [text]
        if self._trainer.accelerator.num_processes > 1:
            broadcast_object_list(found)
        return found[0]

    def wait(self) -> None:
        self._trainer.accelerator.wait_for_everyone()

    def run(self, checkpoint: Path | None) -> None:
        self._trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))

    def weights(self) -> Save:
        def save_nothing(_: Path) -> None:
            raise AssertionError("only the main process saves weights")

        return gather_policy(self._trainer, lora="adapter" if self._has_adapters else "merge") or save_nothing

    def save_state(self, folder: Path) -> None:
        trainer, target = self._trainer, str(folder)
        with write_errors(folder):
            trainer.save_model(target, _internal_call=True)
            trainer._save_optimizer_and_scheduler(target)
            trainer._save_scaler(target)
            trainer._save_rng_state(target)
            if self.is_main:
                trainer.state.save_to_json(str(folder / "trainer_state.json"))
                # A pickle that torch.load reads only without weights_only. The settings are in config.yaml.
                (folder / "training_args.bin").unlink(missing_ok=True)

    def log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        return sequence_log_probs(self._trainer.accelerator.unwrap_model(self._trainer.model), sequences)


class _HookCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not installed where mypy runs
    def __init__(self, hooks: TrainerHooks) -> None:
        self._hooks = hooks

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._hooks.started()

    def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
        # The first event after an update at which its gradient norm is known. A last log without one ends the training.
        if "grad_norm" in logs:
            self._hooks.updated()


def _loaded(kind: Any, model: str, what: str, **options: Any) -> Any:
    try:
        return kind.from_pretrained(model, **options)
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise OperatorError(f"{what} {model!r} cannot be loaded: {reason}") from error


UNLIMITED_STEPS = 10**9
"""Number of steps if the end of the data ends the training."""


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
        temperature=float(config.responses_create_params.get("temperature", 1.0)),
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
    modules = settings.target_modules
    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=modules if isinstance(modules, str) else list(modules),
        task_type="CAUSAL_LM",
    )


def sequence_log_probs(model: Any, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return, for each sequence of ids, the log-probability of every token but the first, at temperature 1.

    One sequence at a time, so that no padding is needed. Under FSDP, all processes must call it with the same
    sequences.
    """
    was_training, found = model.training, []
    device = next(model.parameters()).device
    model.eval()
    try:
        for sequence in sequences:
            ids = torch.tensor([list(sequence)], device=device)
            with torch.no_grad():
                logits = model(input_ids=ids).logits[0, :-1].float()
            found.append(torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0].tolist())
    finally:
        model.train(was_training)
    return found
