"""Real DCP checkpoints of small models, in the layout of NeMo-RL, saved by 1, 2 or 4 processes with FSDP2 on the CPU.

    python -m tests.external.conversion.dcp_files FOLDER --world 2 --seed 0 [--tied] [--dtype bfloat16] [--family llama]

writes FOLDER/model (config and tokenizer of the base model, without weights) and FOLDER/step_7/{config.yaml,policy/…}.
Without arguments, it reads them from its standard input, as one JSON list in each line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import distributed, multiprocessing
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, Qwen3Config

from rollyard.launchers.conversion import ConversionRequest
from tests.external.vllm.tiny_model import VOCABULARY, tokenizer

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": 1,
}


class Saver:
    """Writes checkpoints in other processes, as training does. torch is imported once for all of them."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.communicate()
        self._errors.close()

    def save(self, folder: Path, *options: str) -> Path:
        """Write a checkpoint and return its `policy/weights`."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.external.conversion.dcp_files"],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
            )
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps([str(folder), *options]) + "\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != "saved\n":
            self._errors.seek(0)
            raise AssertionError(self._errors.read())
        return folder / "step_7" / "policy" / "weights"


def save(folder: Path, *options: str) -> Path:
    """Write one checkpoint in other processes."""
    with Saver() as saver:
        return saver.save(folder, *options)


def change_policy(request: ConversionRequest, **changes: Any) -> None:
    """Change settings below `policy` in the checkpoint's config."""
    config = yaml.safe_load(Path(request.config).read_text())
    config["policy"].update(changes)
    Path(request.config).write_text(yaml.safe_dump(config))


def reference(folder: Path, seed: int, *, tied: bool = False) -> Any:
    """The model that a checkpoint was made of."""
    config = AutoConfig.from_pretrained(folder / "model")
    config.tie_word_embeddings = tied
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, weights in sorted(model.named_parameters()):
            weights.normal_(0.0, 0.1, generator=generator)
    return model.eval()


def _save_rank(rank: int, arguments: argparse.Namespace, store: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=arguments.world)
    model = reference(arguments.folder, arguments.seed, tied=arguments.tied)
    if arguments.world > 1:
        mesh = init_device_mesh("cpu", (arguments.world,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    state = get_model_state_dict(model)
    weights = arguments.folder / "step_7" / "policy" / "weights"
    dcp.save(state if arguments.flat else {"model": state}, checkpoint_id=weights)
    distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tied", action="store_true")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--family", choices=("qwen3", "llama"), default="qwen3")
    parser.add_argument("--flat", action="store_true", help="the state dict itself, not below the key 'model'")
    parser.add_argument("--no-tokenizer", action="store_true")
    if len(sys.argv) > 1:
        _write(parser.parse_args())
        return
    for line in sys.stdin:
        _write(parser.parse_args(json.loads(line)))
        print("saved", flush=True)


def _write(arguments: argparse.Namespace) -> None:
    base, step = arguments.folder / "model", arguments.folder / "step_7"
    family = {"qwen3": Qwen3Config, "llama": LlamaConfig}[arguments.family]
    family(**_SIZES, tie_word_embeddings=arguments.tied, dtype=arguments.dtype).save_pretrained(base)
    written = tokenizer()
    written.save_pretrained(base)
    if not arguments.no_tokenizer:
        written.save_pretrained(step / "policy" / "tokenizer")
    (step / "policy" / "weights").mkdir(parents=True)
    policy = {"model_name": str(base), "tokenizer": {"name": str(base)}, "precision": "bfloat16"}
    (step / "config.yaml").write_text(yaml.safe_dump({"policy": policy, "grpo": {"num_prompts_per_step": 8}}))
    with tempfile.TemporaryDirectory() as store:
        # Forked, so that torch is imported once; no thread of it runs yet.
        multiprocessing.start_processes(_save_rank, (arguments, f"{store}/store"), arguments.world, start_method="fork")


if __name__ == "__main__":
    main()
