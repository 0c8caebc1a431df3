"""InitialModel: the policy that a training run starts from, checked before anything is started."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollyard.records.errors import OperatorError

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_NOT_NEEDED = ["*.bin", "*.pth", "*.pt", "*.gguf", "*.h5", "*.msgpack", "*.onnx", "original/*"]
"""Weights in other formats than safetensors."""
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")


@dataclass(frozen=True, slots=True)
class InitialModel:
    """A model in a folder, or on the Hugging Face hub."""

    name: str
    """The folder or the hub name, as given."""
    folder: Path | None
    """None if the model is on the hub and not downloaded yet."""
    is_tied: bool
    """Whether the output head is the embedding."""
    size_bytes: int | None
    """Size of the weights; None if unknown."""

    def fetch(self) -> Path:
        """Return the folder, after downloading the model if necessary. Raises OperatorError if that fails."""
        if self.folder is not None:
            return self.folder
        from huggingface_hub import snapshot_download

        try:
            return Path(snapshot_download(self.name, ignore_patterns=_NOT_NEEDED))
        except Exception as error:
            raise OperatorError(f"model={self.name} cannot be downloaded: {_first_line(error)}") from error


def find_model(name: str, here: Path) -> InitialModel:
    """Return the model. Raises OperatorError if it does not exist or cannot be trained."""
    folder = here / Path(name).expanduser()
    if folder.is_dir():
        _check_files(folder)
        config = _config(str(folder), name)
        return InitialModel(name, folder.resolve(), _is_tied(config), _size(folder.glob("*.safetensors")))
    if name.startswith(("/", ".", "~")) or not _HUB_NAME.fullmatch(name):
        raise OperatorError(f"model={name!r} is neither an existing folder nor a hub name such as Qwen/Qwen3-0.6B")
    return InitialModel(name, None, _is_tied(_config(name, name)), None)


def _check_files(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise OperatorError(f"model={folder} contains no config.json, so it is not the folder of a model")
    if not any(folder.glob("*.safetensors")):
        raise OperatorError(
            f"model={folder} contains no *.safetensors file, which engines load: save the model with "
            "model.save_pretrained(folder)"
        )
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise OperatorError(f"model={folder} contains no tokenizer: save it with tokenizer.save_pretrained(folder)")


def _config(name: str, given: str) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(name)
    except Exception as error:  # transformers raises OSError, ValueError and others
        raise OperatorError(f"model={given} cannot be used: {_first_line(error)}") from error


def _is_tied(config: Any) -> bool:
    inner = getattr(config, "text_config", None)  # of models that also read images
    return any(getattr(one, "tie_word_embeddings", False) for one in (config, inner) if one is not None)


def _size(files: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
