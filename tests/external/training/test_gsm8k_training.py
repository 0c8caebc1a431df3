"""train_gsm8k.py on real questions and a real engine: `kill -9` before the last step, and the same curve again."""

from __future__ import annotations

import os
import random
import shutil
import signal
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
from tests.support.processes import children_of
from tests.support.stacks import SHARED, read_rows
from tests.support.waiting import eventually

DROP_IN = INSTALLED / "examples" / "drop_in"
QUESTIONS = SHARED / "data" / "gsm8k" / "train_first1000.jsonl"
STEPS = 4
NOT_REPEATED = ("train/parity", "train/policy_lag")
"""Beginnings of the names of figures that depend on the engine's rounding, not only on the rollouts."""


class Training:
    def __init__(self, folder: Path, engine: Engine, model: Path, questions: Path) -> None:
        self.folder = Path(shutil.copytree(DROP_IN, folder))
        self.paths = TrainingPaths(self.folder / "checkpoints_gsm8k")
        self._engine = engine
        self._model = model
        self._questions = questions

    def start(self) -> subprocess.Popen[bytes]:
        options = {
            "model": self._model,
            "port": self._engine.url.rpartition(":")[2],
            "local": self._questions,
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
        with (self.folder / "log.txt").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "examples/gsm8k/train_gsm8k.py", *words, "--no-gradient-checkpointing"],
                cwd=self.folder,
                env=environ,
                stdout=log,
                stderr=log,
            )

    def run(self) -> None:
        assert self.start().wait(training_s()) == 0, (self.folder / "log.txt").read_text()

    def kill_after(self, step: int) -> None:
        process = self.start()

        def is_done() -> bool:
            return any(line["step"] == step and "train/loss" in line for line in self._metrics())

        eventually(f"step {step} is done", lambda: is_done() or process.poll() is not None, training_s())
        [trainer] = children_of(process.pid)
        os.kill(trainer, signal.SIGKILL)
        assert process.wait(training_s()) == 128 + signal.SIGKILL

    def curve(self) -> dict[int, Json]:
        """Figures by step that depend only on the rollouts."""
        found: dict[int, Json] = {}
        for line in self._metrics():
            kept = {name: line[name] for name in line if name.startswith(("train/", "eval/"))}
            found.setdefault(line["step"], {}).update(
                {name: value for name, value in kept.items() if not name.startswith(NOT_REPEATED)}
            )
        return found

    def _metrics(self) -> list[Json]:
        return read_rows(self.paths.metrics) if self.paths.metrics.is_file() else []


@pytest.fixture(scope="session")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chosen = sorted(read_rows(QUESTIONS), key=lambda row: len(row["question"]))[:12]
    path = tmp_path_factory.mktemp("questions") / "rows.jsonl"
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in chosen))
    return path


@pytest.fixture(scope="session")
def boxing_policy(tiny_model: Path, questions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_boxing_policy(tiny_model, read_rows(questions)[:4], tmp_path_factory.mktemp("boxing"))


def test_a_killed_run_resumes_to_the_curve_of_an_unbroken_one(
    engine: Engine, boxing_policy: Path, questions: Path, tmp_path: Path
) -> None:
    unbroken = Training(tmp_path / "unbroken", engine, boxing_policy, questions)
    unbroken.run()
    assert [*unbroken.curve()] == [0, 1, 2, 3, 4]
    log = read_rows(unbroken.folder / "gsm8k_train_rollouts.jsonl")
    assert len(log) == STEPS * 16
    assert {step["info"].get("parse_error", False) for line in log for step in line["steps"]} == {True, False}

    # An engine does not repeat its samples. With the same rollouts, everything else has to be the same.
    killed = Training(tmp_path / "killed", engine, boxing_policy, questions)
    shutil.copytree(unbroken.paths.rollouts(1).parent, killed.paths.rollouts(1).parent)
    shutil.copytree(unbroken.paths.evaluation(0).parent, killed.paths.evaluation(0).parent)
    killed.kill_after(3)
    assert (killed.paths.checkpoints / "step_000002").is_dir()
    killed.run()
    assert killed.curve() == unbroken.curve()
    assert orjson.loads((killed.paths.checkpoints / "latest.json").read_bytes())["step"] == STEPS


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
