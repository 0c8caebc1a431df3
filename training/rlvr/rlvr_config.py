"""RlvrConfig: a training config of rlvr-experiments (`entrypoints/train_grpo.py CONFIG`)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from rollyard.records.types import Json


class Section(BaseModel):
    """Base class of the sections. Unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class OpenSection(BaseModel):
    """Base class of sections that other programs read, which have more keys."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)


class RunSection(Section):
    name: str | None = None
    seed: int = 42
    port_start: int | None = None


class ModelSection(Section):
    path: str


class TokenizerSection(OpenSection):
    pretrained_model_name_or_path: str | None = None


class TrainingSection(Section):
    num_epochs: int | None = Field(default=None, ge=1)
    max_steps: int | None = Field(default=None, ge=1)
    max_staleness: int = Field(default=0, ge=0)
    abort_in_flight: bool | None = None
    checkpoint_interval: int | None = Field(default=None, ge=0)
    resume_step: int | None = None
    seq_len_buckets: tuple[int, ...] = ()
    completion_len_buckets: tuple[int, ...] = ()
    prompts_per_rollout_sync: int | None = None
    prompts_per_reference_sync: int | None = None
    prompts_per_optim_step: int = Field(ge=1)
    prompts_per_forward_backward: int = Field(default=1, ge=1)
    completions_per_micro_batch: int | dict[int, int] | None = None
    """Sequences of a micro-batch, or their number for each length."""
    max_concurrent_tasks: int = Field(default=64, ge=1)
    """Prompts in flight, with all their completions."""
    rollout_timeout_s: float = Field(default=9999.0, gt=0)
    alpha_grpo: float = 1.0
    alpha_sft: float = 0.0


class LossSection(Section):
    name: Literal["grpo", "drgrpo", "dapo"] = "drgrpo"
    beta: float = Field(default=0.0, ge=0)
    eps: float | None = None
    eps_low: float | None = None
    eps_high: float | None = None
    C: float | None = Field(default=None, gt=0)


class DataIterSection(Section):
    system_prompt: str = ""
    assistant_prefix: str = ""
    skip_chat_template: bool = True


class SamplingSection(Section):
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = -1
    max_tokens: int = Field(default=512, ge=1)
    n: int = Field(ge=2)
    """Completions per prompt."""
    logprobs: int | None = 0
    stop: str | tuple[str, ...] = ()


class BufferSection(Section):
    maxsize: int = 0
    max_reads: int = 1


class RoleSection(Section):
    name: str
    kind: Literal["titan", "vllm"]
    config: Json = Field(default_factory=dict)


class RlvrConfig(Section):
    """The keys of the file."""

    run: RunSection = RunSection()
    model: ModelSection
    tokenizer: TokenizerSection = TokenizerSection()
    training: TrainingSection
    verifier: Json = Field(default_factory=dict)
    loss: LossSection = LossSection()
    data: Json
    data_iter: DataIterSection = DataIterSection()
    sampling: SamplingSection
    buffer: BufferSection = BufferSection()
    roles: tuple[RoleSection, ...]
    sync: Json = Field(default_factory=dict)
    sft_data: Json | None = None
    sft_data_iter: Json | None = None
    trace_path: str | None = None
