"""Converts a DCP checkpoint into a folder that `from_pretrained` and vLLM load, and checks it.

Written are config, tokenizer and safetensors files of bounded size, with the tensors of one file in memory at a time.
Compared with the source are the tokenizer's output; names, types, shapes and bits of all tensors; and the logits.
"""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging

from rollyard.launchers.conversion.cache import Contents
from rollyard.launchers.conversion.dcp_checkpoint import DcpCheckpoint, stage
from rollyard.launchers.conversion.source import ConversionSource, PolicyConfig
from rollyard.records.errors import RunError
from rollyard.records.locked_files import set_default_mode

MAX_SHARD_BYTES = 5_000_000_000
INDEX = "model.safetensors.index.json"


class HuggingFaceConverter:
    def __init__(self, max_shard_bytes: int = MAX_SHARD_BYTES) -> None:
        self._max_shard_bytes = max_shard_bytes

    def __call__(self, source: ConversionSource, target: Path, report: Callable[[str], None]) -> Contents:
        """Convert `source` into the empty folder `target`. Raises RunError if any check fails."""
        logging.disable_progress_bar()
        logging.set_verbosity_error()
        checkpoint = DcpCheckpoint(source.checkpoint)
        if unknown := checkpoint.files - source.files.keys():
            raise RunError(f"the checkpoint stores tensors in {', '.join(sorted(unknown))}; expected files *.distcp")
        # Config and tokenizer first: an error there takes seconds, writing the weights minutes.
        skeleton = _load_skeleton(source.policy, checkpoint)
        _write_tokenizer(source.tokenizer, target)
        _require_ids(target, skeleton.config.get_text_config().vocab_size)
        with stage("writing the config"):
            skeleton.config.save_pretrained(target)
            skeleton.generation_config.save_pretrained(target)
        if not checkpoint.has_valid_checksums():
            report("The checkpoint has no checksums: damaged values in its files cannot be detected")
        selection = select(checkpoint, skeleton)
        entries = {name: checkpoint.tensors[name] for name in selection.written}
        dtypes = Counter(str(entry.dtype).removeprefix("torch.") for entry in entries.values())
        precision = source.policy.precision
        kept = f" (policy.precision is {precision})" if precision and precision not in dtypes else ""
        report(f"Weights keep the data type of the checkpoint: {', '.join(sorted(dtypes))}{kept}")
        _write_weights(checkpoint, selection.written, target, report, self._max_shard_bytes)
        difference = _check_conversion(checkpoint, skeleton, selection, target, report)
        return Contents(
            tensors=len(entries),
            parameters=sum(math.prod(entry.shape) for entry in entries.values()),
            dtypes=dict(dtypes),
            tied=selection.tied,
            left_out=selection.left_out,
            largest_logit_difference=difference,
        )


@dataclass(frozen=True)
class ModelSkeleton:
    """A model on torch's device `meta`."""

    config: Any
    model_class: Any
    tied: dict[str, str]
    """Names of parameters that share the weights of another, and that other."""
    computed_buffers: frozenset[str]
    generation_config: Any


def _load_skeleton(policy: PolicyConfig, checkpoint: DcpCheckpoint) -> ModelSkeleton:
    """Load the config and set its data type to that of the checkpoint. Raises RunError if it cannot be loaded."""
    hint = "Check policy.model_name and policy.hf_overrides of --dcp-config"
    with stage(f"loading the model config {policy.model_name}", hint):
        config = AutoConfig.from_pretrained(policy.model_name, **policy.hf_overrides)
        config.dtype = _main_dtype(checkpoint)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        config.architectures = [type(model).__name__]
    first: dict[int, str] = {}
    tied = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if (original := first.setdefault(id(parameter), name)) != name:
            tied[name] = original
    stored = set(model.state_dict())
    computed = frozenset(name for name, _ in model.named_buffers() if name not in stored)
    return ModelSkeleton(config, type(model), tied, computed, _generation_config(policy.model_name, config))


def _main_dtype(checkpoint: DcpCheckpoint) -> torch.dtype:
    sizes: Counter[torch.dtype] = Counter()
    for entry in checkpoint.tensors.values():
        if entry.dtype.is_floating_point:
            sizes[entry.dtype] += entry.size
    return sizes.most_common(1)[0][0] if sizes else torch.float32


def _generation_config(name: str, config: Any) -> Any:
    if not Path(name).is_dir() or (Path(name) / "generation_config.json").is_file():
        with suppress(OSError):  # the model has none
            return GenerationConfig.from_pretrained(name)
    return GenerationConfig.from_model_config(config)


_TEXTS = ("The quick brown fox jumps over 13 lazy dogs.", " x = {'a': [1, 2]}\n\tprint(x)  ", "Žluťoučký kůň 漢字 🙂")
_MESSAGES = ([{"role": "user", "content": "2 + 3?"}],)


def _write_tokenizer(name: str, folder: Path) -> None:
    """Write the tokenizer `name` (a folder or a name on the hub) into `folder`. Raises RunError if the copy differs."""
    with stage(f"loading the tokenizer {name}"):
        original = AutoTokenizer.from_pretrained(name)
    with stage(f"writing the tokenizer {name}"):
        original.save_pretrained(folder)
        written = AutoTokenizer.from_pretrained(folder)
    for what, before, after in _properties(original, written):
        if before != after:
            raise RunError(
                f"the tokenizer {name} changes when it is saved: {what} {str(before)[:100]} becomes {str(after)[:100]}"
            )


def _require_ids(folder: Path, vocabulary: int) -> None:
    """Raise RunError if the tokenizer has ids for which the model has no embedding."""
    highest = max(AutoTokenizer.from_pretrained(folder).get_vocab().values(), default=-1)
    if highest >= vocabulary:
        raise RunError(
            f"the tokenizer has token ids up to {highest:,}, but the model only has {vocabulary:,} embeddings: it "
            "belongs to another model"
        )


def _properties(one: Any, other: Any) -> list[tuple[str, Any, Any]]:
    """Return name and both values of what determines a tokenizer's output."""
    compared = [
        ("its vocabulary", one.get_vocab(), other.get_vocab()),
        ("its special tokens", one.special_tokens_map, other.special_tokens_map),
        ("its chat template", one.chat_template, other.chat_template),
    ]
    compared += [(f"{text!r}", one(text)["input_ids"], other(text)["input_ids"]) for text in _TEXTS]
    if isinstance(one.chat_template, str):
        compared += [("a rendered chat", _rendered(one, chat), _rendered(other, chat)) for chat in _MESSAGES]
    return compared


def _rendered(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # a template that needs more than a user's message fails for both
        return f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class WeightSelection:
    written: list[str]
    tied: dict[str, str]
    left_out: list[str]


def select(checkpoint: DcpCheckpoint, skeleton: ModelSkeleton) -> WeightSelection:
    """Leave out copies of tied weights and buffers that the model computes. Raises RunError if tied weights differ."""
    names = checkpoint.tensors
    left_out = [name for name in names if name in skeleton.computed_buffers]
    tied = {name: original for name, original in skeleton.tied.items() if name in names and original in names}
    for name, original in tied.items():
        values = checkpoint.read([name, original])
        if not _same_values(values[name], values[original]):
            raise RunError(
                f"the model's config ties {name} to {original}, but the checkpoint holds different values. Set "
                "policy.hf_overrides.tie_word_embeddings to false in --dcp-config if the model was trained untied"
            )
    return WeightSelection([name for name in names if name not in tied and name not in left_out], tied, left_out)


def _write_weights(
    checkpoint: DcpCheckpoint,
    names: list[str],
    folder: Path,
    report: Callable[[str], None],
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> dict[str, str]:
    shards = _shards(checkpoint, names, max_shard_bytes)
    placed: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors" if len(shards) > 1 else "model.safetensors"
        tensors = {name: tensor.contiguous() for name, tensor in checkpoint.read(shard).items()}
        with stage(f"writing {folder / file}"):
            save_file(tensors, folder / file, metadata={"format": "pt"})
            set_default_mode([folder / file])
        placed |= dict.fromkeys(shard, file)
        if len(shards) > 1:
            report(f"Wrote {file}")
    if len(shards) > 1:
        size = sum(checkpoint.tensors[name].size for name in names)
        index = {"metadata": {"total_size": size}, "weight_map": placed}
        (folder / INDEX).write_bytes(orjson.dumps(index, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))
    return placed


def _same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have the same type, shape and bits; NaN equals NaN."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return bool(torch.equal(_bytes(one), _bytes(other)))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _shards(checkpoint: DcpCheckpoint, names: list[str], max_bytes: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    size = 0
    for name in names:
        if shards[-1] and size + checkpoint.tensors[name].size > max_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += checkpoint.tensors[name].size
    return shards


_PROMPT_TOKENS = 16
_TOLERANCE = 1e-5
"""Of the logits, relative to the largest. The weights are equal, so only the order of additions may differ."""
_LISTED = 5


def _check_conversion(
    checkpoint: DcpCheckpoint,
    skeleton: ModelSkeleton,
    selection: WeightSelection,
    folder: Path,
    report: Callable[[str], None],
) -> float:
    """Raise RunError if the folder does not hold the checkpoint's model. Returns the largest difference of logits."""
    values = checkpoint.read(name for name in checkpoint.tensors if name not in selection.left_out)
    _compare_tensors(values, selection, folder)
    report(f"Checked: {len(selection.written)} tensors equal the checkpoint's")
    hint = "policy.model_name or policy.hf_overrides of --dcp-config describes another model than the checkpoint's"
    with stage("loading the checkpoint's weights into the model", hint):
        given = {"config": skeleton.config, "state_dict": dict(values), "dtype": skeleton.config.dtype}
        expected = _logits(_loaded(skeleton.model_class, None, **given))
    given.clear()
    values.clear()
    gc.collect()
    with stage("loading the converted checkpoint", hint):
        found = _logits(_loaded(AutoModelForCausalLM, folder, dtype="auto"))
    difference = _difference(expected, found)
    report("Checked: the converted model's logits equal those of the checkpoint")
    return difference


def _compare_tensors(values: dict[str, torch.Tensor], selection: WeightSelection, folder: Path) -> None:
    missing = set(selection.written)
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in sorted(opened.keys()):
                if name not in missing:
                    raise RunError(
                        f"{file.name} holds {name}, which is not a tensor of the checkpoint, or is stored twice"
                    )
                missing.discard(name)
                if not _same_values(opened.get_tensor(name), values[name]):
                    raise RunError(f"{name} differs from the checkpoint after writing; the disk may be damaged")
    if missing:
        raise RunError(f"{_listed(missing)} of the checkpoint were not written")


def _loaded(model_class: Any, folder: Path | None, **options: Any) -> Any:
    """Return a model. Raises RunError if the weights are not exactly those that it has."""
    model, loaded = model_class.from_pretrained(folder, output_loading_info=True, **options)
    for kind, meaning in (
        ("missing_keys", "are missing in the checkpoint"),
        ("unexpected_keys", "are not part of the model"),
        ("mismatched_keys", "have another shape than in the model"),
        ("error_msgs", "were reported as errors"),
    ):
        if found := loaded.get(kind):
            raise RunError(
                f"{_listed({str(name) for name in found})} {meaning}: policy.model_name or policy.hf_overrides of "
                "--dcp-config describes another model than the checkpoint's"
            )
    return model


def _logits(model: Any) -> torch.Tensor:
    model.eval()
    vocabulary = model.config.get_text_config().vocab_size
    # Multiples of a prime: different ids from the whole vocabulary.
    prompt = (torch.arange(1, _PROMPT_TOKENS + 1) * 7919 % vocabulary).unsqueeze(0)
    with torch.inference_mode():
        logits: torch.Tensor = model(prompt).logits.float()
    return logits


def _difference(expected: torch.Tensor, found: torch.Tensor) -> float:
    if expected.shape != found.shape:
        raise RunError(
            f"the converted model has logits of shape {tuple(found.shape)}; expected {tuple(expected.shape)}"
        )
    if not torch.isfinite(expected).all():
        raise RunError(
            "the checkpoint's logits are not finite numbers: the training has diverged; convert an earlier step"
        )
    difference = float((expected - found).abs().max())
    if not difference <= _TOLERANCE * float(expected.abs().max()):
        raise RunError(f"the converted model's logits differ from those of the checkpoint by up to {difference:.3g}")
    return difference


def _listed(names: set[str]) -> str:
    shown = ", ".join(sorted(names)[:_LISTED])
    return f"{shown} and {len(names) - _LISTED} more tensors" if len(names) > _LISTED else shown
