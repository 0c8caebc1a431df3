"""A tiny policy that answers GSM8K questions at random, half of the time in a box, so that rewards differ."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, Qwen3ForCausalLM

from rollyard.records.types import Json
from rollyard.resources_servers.gsm8k.prompt_formats import create_params

UPDATES = 40
_BATCH = 8


def build_boxing_policy(start: Path, questions: list[Json], folder: Path) -> Path:
    """Train a copy of the model `start` on random answers, and return the folder of the result."""
    tokenizer, model = AutoTokenizer.from_pretrained(start), Qwen3ForCausalLM.from_pretrained(start, dtype="float32")
    draw, optimizer = random.Random(0), torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(UPDATES):
        texts = [draw.choice([r"\boxed{%d}", "It is %d."]) % draw.randrange(20) for _ in range(_BATCH)]
        _update(model, optimizer, [_ids(tokenizer, draw.choice(questions)["question"], text) for text in texts])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _ids(tokenizer: object, question: str, text: str) -> tuple[list[int], list[int]]:
    messages = create_params("chat", question)["input"]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)  # type: ignore[attr-defined]
    found: tuple[list[int], list[int]] = tokenizer(prompt)["input_ids"], tokenizer(f"{text}<|im_end|>")["input_ids"]  # type: ignore[operator]
    return found


def _update(model: Qwen3ForCausalLM, optimizer: torch.optim.AdamW, examples: list[tuple[list[int], list[int]]]) -> None:
    longest = max(len(prompt) + len(answer) for prompt, answer in examples)
    ids = torch.zeros(len(examples), longest, dtype=torch.long)
    labels = torch.full_like(ids, -100)
    for row, (prompt, answer) in enumerate(examples):
        ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    logits = model(input_ids=ids).logits
    cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
