"""Trains the policy with the Trainer of transformers. Imports torch; train.py reads the command line.

Not TRL's SFTTrainer, because it takes the labels from the inputs, but the label of a random move is the optimal one.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from examples.sokoban_policy.layouts import VALIDATION_SEED, distinct_rooms
from examples.sokoban_policy.play import play
from examples.sokoban_policy.vocabulary import END, PAD, build_tokenizer
from rollyard.resources_servers.grl_sokoban.game import Room

INTERVAL = 250
"""Steps between two checkpoints."""


class Batches(Dataset[dict[str, torch.Tensor]]):  # type: ignore[misc]
    """The batches of `make_data`."""

    def __init__(self, path: Path) -> None:
        data = np.load(path)
        self._shapes = data["shapes"].tolist()
        self._ends = np.cumsum([rows * length for rows, length in self._shapes])
        self._ids, self._labels = data["ids"].astype(np.int64), data["labels"].astype(np.int64)

    def __len__(self) -> int:
        return len(self._shapes)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        rows, length = self._shapes[index]
        part = slice(self._ends[index] - rows * length, self._ends[index])
        ids, labels = (torch.from_numpy(array[part].reshape(rows, length)) for array in (self._ids, self._labels))
        return {"input_ids": ids, "labels": labels}


def new_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Return a model with random weights: 1.1 million parameters, with an output head of its own."""
    end, pad = tokenizer.convert_tokens_to_ids([END, PAD])
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        eos_token_id=end,
        pad_token_id=pad,
        bos_token_id=None,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=[end, pad], pad_token_id=pad)
    return model


class Curve(TrainerCallback):  # type: ignore[misc]
    """Plays validation rooms from time to time, saves the policy, and writes a line to curve.jsonl."""

    def __init__(self, rooms: list[Room], tokenizer: PreTrainedTokenizerFast, folder: Path, stop_after: int) -> None:
        self._rooms, self._tokenizer, self._folder, self._stop_after = rooms, tokenizer, folder, stop_after
        self._loss = float("nan")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self._loss = (logs or {}).get("loss", self._loss)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        control.should_training_stop |= state.global_step == self._stop_after
        if state.global_step % INTERVAL and not control.should_training_stop:
            return
        model.eval()
        success = play(model, self._tokenizer, self._rooms).success
        model.train()
        line = {"step": state.global_step, "cpu_s": round(time.process_time(), 1), "loss": self._loss,
                "success": success}  # fmt: skip
        print(json.dumps(line), flush=True)
        with (self._folder / "curve.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        save(model, self._tokenizer, self._folder / f"step_{state.global_step:06d}")


def save(model: Any, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    model.config.use_cache = True  # the Trainer disables it
    model.save_pretrained(folder)
    model.config.use_cache = False
    tokenizer.save_pretrained(folder)


def _first(items: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return items[0]


@dataclass(frozen=True)
class TrainingRun:
    """What one run of the command does."""

    data: Path
    output: Path
    steps: int | None
    stop_after: int | None
    initial: Path | None
    learning_rate: float
    seed: int


def train(run: TrainingRun) -> None:
    """Train on one core, and write checkpoints, the curve and the final policy."""
    torch.set_num_threads(1)
    set_seed(run.seed)
    run.output.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    if run.initial is None:
        model = new_model(tokenizer)
    else:
        model = Qwen3ForCausalLM.from_pretrained(run.initial, dtype=torch.float32)
    model.set_attn_implementation("eager")  # about as fast as sdpa for these lengths on a CPU
    data = Batches(run.data)
    steps = run.steps or len(data)
    print(f"{model.num_parameters()} parameters, {steps} steps")
    trainer = Trainer(
        model=model,
        args=_settings(run, steps),
        train_dataset=data,
        data_collator=_first,
        callbacks=[Curve(distinct_rooms(64, VALIDATION_SEED), tokenizer, run.output, run.stop_after or steps)],
    )
    trainer.train()
    save(model, tokenizer, run.output / "final")
    print(f"{time.process_time():.0f} s of CPU time")


def _settings(run: TrainingRun, steps: int) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(run.output),
        max_steps=steps,
        per_device_train_batch_size=1,  # an item of the dataset is a batch
        learning_rate=run.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=min(100, steps // 10),
        weight_decay=0.05,
        adam_beta2=0.98,
        max_grad_norm=1.0,
        bf16=torch.cpu.get_capabilities().get(
            "amx_bf16", False
        ),  # other CPUs emulate it, three times slower than float32
        use_cpu=True,
        seed=run.seed,
        logging_steps=50,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        optim="adamw_torch_fused",
        dataloader_pin_memory=False,
    )
