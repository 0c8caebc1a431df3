"""A folder that looks like a model to the checks that run before a training starts."""

from __future__ import annotations

import json
from pathlib import Path


def model_folder(folder: Path, *, tied: bool = False) -> Path:
    folder.mkdir()
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": tied}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"\0" * 1024)
    (folder / "tokenizer.json").write_text("{}")
    return folder
