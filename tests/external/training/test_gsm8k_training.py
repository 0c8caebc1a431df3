"""train_gsm8k.py on real questions and a real engine. test_crashes.py kills and resumes trainings."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

from rollyard.records.data_files import INSTALLED
from rollyard.records.types import Json
from rollyard.resources_servers.gsm8k.app import create_params
from rollyard.training.run_folder import TrainingPaths
from tests.external.training.train_command import training_s
from tests.external.vllm.engine import Engine
from tests.support.commands import command_environ
from tests.support.stacks import SHARED, read_rows

DROP_IN = INSTALLED / "examples" / "drop_in"
QUESTIONS = SHARED / "data" / "gsm8k" / "train_first1000.jsonl"
STEPS = 2


@pytest.fixture(scope="session")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chosen = sorted(read_rows(QUESTIONS), key=lambda row: len(row["question"]))[:12]
    path = tmp_path_factory.mktemp("questions") / "rows.jsonl"
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in chosen))
    return path


@pytest.fixture(scope="session")
def boxing_policy(tiny_model: Path, questions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_boxing_policy(tiny_model, read_rows(questions)[:4], tmp_path_factory.mktemp("boxing"))


def test_the_program_trains_evaluates_saves_and_logs_its_rollouts(
    engine: Engine, boxing_policy: Path, questions: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(DROP_IN, tmp_path / "drop_in"))
    options = {
        "model": boxing_policy,
        "port": engine.url.rpartition(":")[2],
        "local": questions,
        "rollouts-per-update": 16,
        "group-size": 8,
        "train-steps": STEPS,
        "max-seq-len": 256,
        "max-completion-tokens": 16,
        "micro-token-budget": 4096,
        "eval-limit": 4,
        "eval-every": 2,
        "checkpoint-every": 2,
        "learning-rate": 1e-3,
        "dtype": "float32",
        "logger": "print",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    environ = command_environ({"OMP_NUM_THREADS": "1", "PYTHONPATH": f".{os.pathsep}{os.pathsep.join(sys.path)}"})
    command = [sys.executable, "examples/gsm8k/train_gsm8k.py", *words, "--no-gradient-checkpointing"]
    with (folder / "log.txt").open("wb") as log:
        done = subprocess.run(command, cwd=folder, env=environ, stdout=log, stderr=log, timeout=training_s())
    assert done.returncode == 0, (folder / "log.txt").read_text()
    paths = TrainingPaths(folder / "checkpoints_gsm8k")
    metrics = read_rows(paths.metrics)
    assert [line["step"] for line in metrics if "train/loss" in line] == [1, 2]
    assert [line["step"] for line in metrics if "eval/reward" in line] == [0, 2]
    assert orjson.loads((paths.checkpoints / "latest.json").read_bytes())["step"] == STEPS
    rollouts = read_rows(folder / "gsm8k_train_rollouts.jsonl")
    assert len(rollouts) == STEPS * 16
    assert {step["info"].get("parse_error", False) for one in rollouts for step in one["steps"]} == {True, False}


def build_boxing_policy(start: Path, questions: list[Json], folder: Path) -> Path:
    """Train a copy of the model `start` on random answers, and return the folder of the result."""
    tokenizer, model = AutoTokenizer.from_pretrained(start), Qwen3ForCausalLM.from_pretrained(start, dtype="float32")
    draw, optimizer = random.Random(0), torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(40):
        texts = [draw.choice([r"\boxed{%d}", "It is %d."]) % draw.randrange(20) for _ in range(8)]
        examples = [_ids(tokenizer, draw.choice(questions)["question"], text) for text in texts]
        longest = max(len(prompt) + len(answer) for prompt, answer in examples)
        ids = torch.zeros(len(examples), longest, dtype=torch.long)
        labels = torch.full_like(ids, -100)
        for row, (prompt, answer) in enumerate(examples):
            ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
            labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
        model(input_ids=ids, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _ids(tokenizer: Any, question: str, text: str) -> tuple[list[int], list[int]]:
    messages = create_params("chat", question)["input"]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer(prompt)["input_ids"], tokenizer(f"{text}<|im_end|>")["input_ids"]
