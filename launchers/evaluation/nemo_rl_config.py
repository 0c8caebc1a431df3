"""NemoRlConfig: an evaluation config of NeMo-RL (`examples/configs/evals/eval.yaml`), validated before anything starts.

Keys that this stack does not use, such as `generation.colocated`, are kept out and listed in `unused`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.records.search_path import INSTALLED, find_file
from rollyard.records.types import Json
from rollyard.services.config.load import describe_error, read_yaml
from rollyard.services.server.settings import parse_settings

SECTIONS = frozenset({"generation", "eval", "data", "tokenizer", "env", "cluster"})
_LIKE_OURS = frozenset({"expert_parallel_size", "max_num_seqs", "num_prompts_per_step"})
"""NeMo-RL's keys that resemble a known key but are not misspelt."""


class Section(BaseModel):
    """Base class of the sections. Other programs read more keys, so unknown ones are allowed."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True, hide_input_in_errors=True)


class VllmSection(Section):
    tensor_parallel_size: int = Field(default=1, ge=1)
    pipeline_parallel_size: int = Field(default=1, ge=1)
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    max_model_len: int = Field(default=2048, ge=1)
    precision: str = "bfloat16"
    enforce_eager: bool = False


class GenerationSection(Section):
    backend: Literal["vllm"] = "vllm"
    model_name: str
    """A hub name or a folder; `builtin` is this stack's policy without a model."""
    base_url: str | None = None
    """Not in NeMo-RL: an endpoint that already serves the model, instead of starting vLLM."""
    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int | None = -1
    max_new_tokens: int | None = Field(default=None, ge=1)
    """None: as many as `max_model_len`, as in NeMo-RL; the engine stops at the end of its context."""
    vllm_cfg: VllmSection = VllmSection()


class EvalSection(Section):
    metric: Literal["pass@k", "cons@k"] = "pass@k"
    num_tests_per_prompt: int = Field(default=1, ge=1)
    k_value: int = Field(default=1, ge=1)
    seed: int = 42
    save_path: Path | None = None


class DataSection(Section):
    dataset_name: str
    """A dataset of the Hugging Face hub, or a JSON Lines file of rows of an environment."""
    dataset_key: str = "test"
    """The dataset's split."""
    prompt_file: Path | None = None
    """Template of the user message; `{}` in it is replaced by the problem."""
    system_prompt_file: Path | None = None
    local_root: Path | None = None
    """Not in NeMo-RL: a folder of dataset clones, <local_root>/openai/gsm8k, for nodes without a network."""
    limit: int | None = Field(default=None, ge=1)
    """Not in NeMo-RL: use only the first rows."""


class TokenizerSection(Section):
    name: str | None = None
    chat_template: str | None = None
    chat_template_kwargs: Json | None = None


class ClusterSection(Section):
    gpus_per_node: int = Field(default=1, ge=0)
    num_nodes: int = Field(default=1, ge=1)


class NemoRlConfig(Section):
    """The sections that an evaluation reads."""

    generation: GenerationSection
    data: DataSection
    eval: EvalSection = EvalSection()
    tokenizer: TokenizerSection = TokenizerSection()
    cluster: ClusterSection = ClusterSection()

    @model_validator(mode="after")
    def _check_samples(self) -> Self:
        """NeMo-RL's own checks: pass@k and cons@k need k responses that can differ."""
        samples, k = self.eval.num_tests_per_prompt, self.eval.k_value
        if samples < k:
            raise ValueError(f"eval.num_tests_per_prompt is {samples}; expected at least eval.k_value, {k}")
        if samples > 1 and (self.generation.temperature == 0 or self.generation.top_k == 1):
            raise ValueError(
                f"eval.num_tests_per_prompt is {samples}, but with generation.temperature 0 or top_k 1 all responses "
                "are the same; raise them, or set num_tests_per_prompt to 1"
            )
        return self

    @property
    def unused(self) -> list[str]:
        """Keys of the config that have no effect here, such as `generation.colocated`."""
        return sorted(key for key, _ in _extra(self, ""))


def is_nemo_rl(tree: Mapping[Any, Any]) -> bool:
    """Return whether the top-level keys of a YAML file are those of NeMo-RL's evaluation."""
    return "generation" in tree and isinstance(tree["generation"], Mapping)


def load_tree(path: Path, *, seen: tuple[Path, ...] = ()) -> DictConfig:
    """Read a YAML file and the files named by its key `defaults`, which it overrides. References stay unresolved.

    `defaults` are paths relative to the file, or of Rollyard's own files, such as `configs/nemo_rl_eval.yaml`.

    Raises OperatorError if a file cannot be read, is empty, or inherits from itself.
    """
    path = path.expanduser().resolve()
    if path in seen:
        raise OperatorError(f"{path} inherits from itself through defaults: {' -> '.join(map(str, (*seen, path)))}")
    if not path.is_file():
        raise OperatorError(f"config file {str(path)!r} does not exist")
    tree = read_yaml(path)
    if not tree:
        raise OperatorError(f"{path} is empty; expected the sections generation, eval and data")
    parents = tree.pop("defaults", None)
    merged = OmegaConf.create({})
    for parent in [parents] if isinstance(parents, str) else parents or ():
        beside = path.parent / str(parent)
        merged.merge_with(load_tree(find_file(str(parent), [path.parent, INSTALLED]) or beside, seen=(*seen, path)))
    merged.merge_with(tree)
    return merged


def parse(tree: DictConfig | Mapping[str, Any], origin: str) -> NemoRlConfig:
    """Resolve the references and validate the tree; OperatorError if it is invalid. `origin` names it in messages."""
    config = tree if isinstance(tree, DictConfig) else OmegaConf.create(dict(tree))
    try:
        resolved: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise OperatorError(f"{origin}: {describe_error(error)}") from error
    known = {key: value for key, value in resolved.items() if key in SECTIONS and value is not None}
    others = {key: value for key, value in resolved.items() if key not in SECTIONS}
    parsed = parse_settings(NemoRlConfig, {**known, **others}, origin)
    for key, names in _extra(parsed, ""):
        name = key.rpartition(".")[2]
        if name not in _LIKE_OURS and (hint := did_you_mean(name, names)):
            raise OperatorError(f"{origin}: unknown key {key!r}{hint}")
    return parsed


def _extra(section: Section, prefix: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each unknown key with the known names of its section."""
    known = list(type(section).model_fields)
    for name in section.model_extra or {}:
        yield prefix + name, known
    for name in known:
        if isinstance(value := getattr(section, name), Section):
            yield from _extra(value, f"{prefix}{name}.")
