"""Checkpoint: what a folder of weights shows before any engine is touched.

It is worth the look: an engine whose load fails must be started again (loader.py), and where tensors are merely missing
vLLM 0.32 says 200 and goes on with the old ones in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from services.errors import Failure, FailureKind
from services.types import Json

Shapes = dict[str, list[int]]

LONGEST_HEADER = 100_000_000
"""What the safetensors library itself takes for the limit."""
TIED = (
    "tie_word_embeddings is true: vLLM's CPU builds (0.32) keep the old lm_head of such a model without a word; there, "
    "compare logprobs after the update or train a model with tie_word_embeddings=false"
)
_OPTIONAL = ("lm_head.weight", "rotary_emb.inv_freq")
"""Written by some and left out by others; engines do without them."""
_INDEX = "model.safetensors.index.json"


def check(folder: str, current: str | None) -> list[str]:
    """Warnings about the weights in `folder`, which are to come after those in `current`.

    Raises Failure bad_request: not a folder of weights, not whole, not this model's.
    """
    path = Path(folder)
    if not path.is_absolute():
        raise _refused(f"path: found {folder!r}; an absolute path to a folder is expected, as the engines see it")
    if not path.exists():
        return [f"{folder} is not to be seen from this server's machine, so nothing in it was checked"]
    config = _json(path / "config.json")
    warnings = [TIED] if _tied(config) else []
    shapes = _shapes(path)
    if not shapes:
        return [*warnings, f"{folder} holds no *.safetensors, so its tensors were not checked"]
    known = _shapes(Path(current)) if current and Path(current).is_dir() else {}
    return warnings + _compared(folder, shapes, known)


def _compared(folder: str, shapes: Shapes, known: Shapes) -> list[str]:
    other = [f"{name} {shapes[name]} for {shape}" for name, shape in known.items() if shapes.get(name, shape) != shape]
    if other:
        raise _refused(f"{folder} is another model: {_some(other)}")
    missing = [name for name in known if name not in shapes and not name.endswith(_OPTIONAL)]
    unknown = [name for name in shapes if known and name not in known and not name.endswith(_OPTIONAL)]
    if 2 * len(missing) > len(known):
        return [f"{folder} names its tensors otherwise than the current weights do, so they were not compared"]
    if missing:
        raise _refused(f"{folder} is not whole: it lacks {_some(missing)}, which the current weights have")
    if unknown:
        raise _refused(f"{folder} is another model: it has {_some(unknown)}, which the current weights have not")
    return []


def _shapes(folder: Path) -> Shapes:
    shapes: Shapes = {}
    for file in _files(folder):
        shapes.update(_header(file))
    return shapes


def _files(folder: Path) -> list[Path]:
    if not (folder / _INDEX).exists():
        return sorted(folder.glob("*.safetensors"))
    return [folder / name for name in sorted(set(_json(folder / _INDEX).get("weight_map", {}).values()))]


def _header(file: Path) -> Shapes:
    """Names and shapes of a file's tensors, once it is sure that all of them are there."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header: Any = orjson.loads(opened.read(length)) if length <= LONGEST_HEADER else None
            tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
            expected = 8 + length + max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
            found = file.stat().st_size
    except FileNotFoundError:
        raise _refused(f"{file} is missing, though {_INDEX} names it") from None
    except (OSError, ValueError, AttributeError, KeyError, TypeError, IndexError) as error:
        raise _refused(f"{file} is not whole ({type(error).__name__}: {error}); is it still being written?") from error
    if found < expected:
        raise _refused(f"{file} is not whole: {found} of {expected} bytes; is it still being written?")
    return {name: entry["shape"] for name, entry in tensors.items()}


def _tied(config: Json) -> bool:
    inner = config.get("text_config")
    return bool(config.get("tie_word_embeddings") or (isinstance(inner, dict) and inner.get("tie_word_embeddings")))


def _json(file: Path) -> Json:
    try:
        value: Any = orjson.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        told = f"{file} cannot be read ({error}); a folder as save_pretrained writes it is expected"
        raise _refused(told) from error
    if not isinstance(value, dict):
        raise _refused(f"{file} holds no JSON object")
    return value


def _refused(told: str) -> Failure:
    return Failure(FailureKind.BAD_REQUEST, told)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
