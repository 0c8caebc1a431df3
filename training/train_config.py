"""TrainConfig: everything that defines a training run, from a YAML file or the command line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from rollyard.records.errors import OperatorError
from rollyard.records.types import Record
from rollyard.training.groups import EndingRules, Scale

_CONFIG = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, coerce_numbers_to_str=True)


class LossSettings(Record):
    """The loss. A value that is not set is that of the algorithm."""

    model_config = _CONFIG

    algorithm: str = "grpo"
    """grpo, dr_grpo, dapo, gspo, cispo, scalerl or reinforce_baseline."""
    epsilon: float | None = Field(default=None, gt=0)
    """Ratios are clipped at 1 - epsilon."""
    epsilon_high: float | None = Field(default=None, gt=0)
    """Ratios are clipped at 1 + epsilon_high; for cispo, at epsilon_high."""
    scale: Scale | None = None
    """Divide advantages by the standard deviation of the `group`, of the `batch`, or by nothing (`none`)."""
    beta: float | None = Field(default=None, ge=0)
    """Weight of the KL divergence from the initial policy."""
    length_constant: int | None = Field(default=None, ge=1)
    """The constant by which dr_grpo divides the sum over an episode's tokens; default: optimizer.max_seq_len."""
    constrained_turns: Literal["refuse", "mask", "reweight"] = "refuse"
    """What to do with turns that something but the policy constrained, such as strict tools: stop with an error, train
    without their tokens, or train on them with importance weights."""
    max_importance_weight: float = Field(default=2.0, gt=0)
    """Upper limit of the importance weights of `reweight`."""
    assumed_temperature: float | None = Field(default=None, gt=0)
    """Sampling temperature of turns that do not record it, such as those of other stacks."""

    @field_validator("algorithm")
    @classmethod
    def _check_algorithm(cls, name: str) -> str:
        algorithm_named(name)
        return name

    @property
    def resolved(self) -> Algorithm:
        """The algorithm with the values that are set here."""
        given = self.model_dump(include={"epsilon", "epsilon_high", "scale", "beta"}, exclude_none=True)
        return replace(algorithm_named(self.algorithm), **given)


class LoraSettings(Record):
    """Low-rank adapters (arXiv 2106.09685) instead of training all weights."""

    model_config = _CONFIG

    rank: int = Field(default=16, ge=1, le=512)
    """Rank of the update of each matrix."""
    alpha: float = Field(default=32.0, gt=0)
    """The update is multiplied by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of an adapter's inputs that is set to 0 during training."""
    target_modules: str | tuple[str, ...] = "all-linear"
    """Names of the modules that get an adapter, or `all-linear`."""


class OptimizerSettings(Record):
    """AdamW, and the shape of an update."""

    model_config = _CONFIG

    learning_rate: float = Field(default=1e-6, gt=0)
    """Highest learning rate."""
    warmup_steps: int = Field(default=0, ge=0)
    """Updates over which the learning rate rises from 0."""
    lr_scheduler: str = "constant_with_warmup"
    """Name of a scheduler of transformers, such as cosine."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay."""
    max_grad_norm: float = Field(default=0.5, gt=0)
    """Gradients are scaled down to this norm."""
    num_iterations: int = Field(default=1, ge=1)
    """Steps of the optimizer on the rollouts of each update (mu of arXiv 2402.03300). After the first one, clipping the
    ratios limits how far the others move the policy."""
    max_seq_len: int = Field(default=1024, ge=2)
    """Longer sequences are masked and counted, never truncated."""
    micro_token_budget: int = Field(default=16384, ge=2)
    """Tokens that go through the model together, padding included."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights and of the forward pass. The loss is computed in float32."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass, which saves memory."""
    lora: LoraSettings | None = None
    """Train adapters; null: train all weights."""
    accelerate_config: Path | None = None
    """Config file of accelerate, for several processes and FSDP."""


class WeightSettings(Record):
    """How new weights reach the engines."""

    model_config = _CONFIG

    method: Literal["auto", "files", "nccl", "ipc"] = "auto"
    """`files`: a folder per version, which the engines read. `nccl`, `ipc`: vLLM's weight transfer between GPUs.
    `auto`: nccl if trainer and engines have GPUs, otherwise files."""
    keep: int = Field(default=2, ge=2)
    """How many versions stay on disk. Engines that restart load the newest one again, so that there are always two."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Maximum duration of an update of all engines, in seconds."""
    parity_interval: int | None = Field(default=None, ge=0)
    """Compare the engines' log-probabilities with the trainer's after every so many updates; 0: never. Default: 1 on a
    CPU, 10 on GPUs."""
    parity_tolerance: float | None = Field(default=None, gt=0)
    """Largest mean difference of log-probabilities, in nats, before training stops. Default: 1e-3 in float32, 0.05 in
    bfloat16."""


class EvaluationSettings(Record):
    """Evaluation of the policy before and during training."""

    model_config = _CONFIG

    input_jsonl_fpath: str | None = None
    """Dataset to evaluate on; null: no evaluation."""
    before_start: bool = True
    """Evaluate before the first update."""
    interval: int = Field(default=10, ge=0)
    """Evaluate after every so many updates; 0: only before the first and after the last."""
    limit: int | None = Field(default=1000, ge=1)
    """Use only the first rows of the dataset."""
    num_repeats: int = Field(default=1, ge=1)
    """Rollouts per row."""
    responses_create_params: dict[str, Any] = Field(default_factory=lambda: {"temperature": 0.0})
    """Sampling parameters. The temperature is 0 unless it is set."""
    num_samples_in_parallel: int = Field(default=64, ge=1)
    """Concurrent episodes."""

    @field_validator("responses_create_params")
    @classmethod
    def _add_temperature(cls, given: dict[str, Any]) -> dict[str, Any]:
        return {"temperature": 0.0, **given}


class TrainConfig(Record):
    """The keys of a training YAML file, which are also the options of `ng_train`."""

    model_config = _CONFIG

    model: str
    """Initial policy: a folder or the name of a model on the Hugging Face hub."""
    output_dir: Path
    """Folder of the run. If it contains a run with the same settings, training resumes."""
    head: str | None = None
    """HOST:PORT of a running stack; null: start one, with a vLLM engine for the policy."""
    environments: tuple[str, ...] = ()
    """Environments whose default configs are loaded, as for `ng_eval`."""
    config_paths: tuple[str, ...] = ()
    """More config files, or all of them, as for `ng_run`."""
    overrides: tuple[str, ...] = ()
    """Overrides of the servers' settings, as for `ng_run`."""
    ray_head_node_address: str | None = None
    """Ray cluster (HOST:PORT, or auto) on which the servers and the engines run; null: on this host."""
    trainer_num_gpus: float | None = Field(default=None, ge=0)
    """With ray_head_node_address: run the trainer on the cluster too, as an actor with that many GPUs; null: here."""
    ready_timeout_s: float = Field(default=1800.0, gt=0)
    """Maximum time for the servers and the engines to become ready, in seconds."""
    policy_server: str = "policy_model"
    """Name of the model server of the policy."""
    agent_name: str | None = None
    """Agent for rows without an agent_ref; default: the only agent of the configs."""

    input_jsonl_fpath: str | None = None
    """Dataset to train on."""
    data: str | dict[str, Any] | None = None
    """Mixture of datasets to use instead of input_jsonl_fpath."""
    limit: int | None = Field(default=None, ge=1)
    """Use only the first rows of the dataset."""
    shuffle: bool = True
    """Shuffle the rows before each epoch, by `seed`."""
    seed: int = Field(default=42, ge=0)
    """Seed of the order of the data and of the trainer."""

    max_steps: int = Field(default=20, ge=0)
    """Number of updates; 0: until every row has been used `epochs` times."""
    epochs: int = Field(default=1, ge=1)
    """How often each row is used if max_steps is 0."""
    groups_per_step: int = Field(default=32, ge=1)
    """Tasks of one update."""
    group_size: int = Field(default=8, ge=2)
    """Rollouts of each task."""
    min_group_members: int = Field(default=2, ge=2)
    """Groups with fewer usable rollouts are skipped."""
    resample: bool = False
    """Play another task in place of each skipped group."""
    responses_create_params: dict[str, Any] = Field(default_factory=lambda: {"temperature": 1.0})
    """Sampling parameters. The temperature is 1 unless it is set."""
    num_samples_in_parallel: int = Field(default=64, ge=1)
    """Concurrent episodes."""
    rollout_timeout_s: float = Field(default=3600.0, gt=0)
    """Maximum duration of an episode, in seconds."""
    max_attempts: int = Field(default=3, ge=1)
    """How often a rollout is tried whose servers fail."""
    max_failure_rate: float = Field(default=0.5, ge=0, le=1)
    """Training stops if a larger share of a step's rollouts fails permanently."""
    max_staleness: int = Field(default=0, ge=0)
    """By how many updates the policy of a rollout may be older than the one that is trained. 0: play and train in turn;
    a resumed run then repeats an unbroken one."""
    endings: EndingRules = Field(default_factory=EndingRules)
    """How rollouts take part in an update, by how they ended."""

    loss: LossSettings = Field(default_factory=LossSettings)
    """The loss and its advantages."""
    optimizer: OptimizerSettings = Field(default_factory=OptimizerSettings)
    """The optimizer and the shape of an update."""
    weights: WeightSettings = Field(default_factory=WeightSettings)
    """How new weights reach the engines."""
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)
    """Evaluation before and during training."""
    checkpoint_interval: int = Field(default=25, ge=0)
    """Save a checkpoint after every so many updates, and after the last; 0: only after the last."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """How many checkpoints stay on disk."""
    loggers: tuple[str, ...] = ("rich",)
    """Where metrics go, besides metrics.jsonl: rich, print, wandb, mlflow; [] for none."""

    @field_validator("responses_create_params")
    @classmethod
    def _add_temperature(cls, given: dict[str, Any]) -> dict[str, Any]:
        return {"temperature": 1.0, **given}

    @model_validator(mode="after")
    def _check_budget(self) -> Self:
        optimizer = self.optimizer
        if optimizer.micro_token_budget < optimizer.max_seq_len:
            raise ValueError(
                f"optimizer.micro_token_budget ({optimizer.micro_token_budget}) is less than optimizer.max_seq_len "
                f"({optimizer.max_seq_len}): one sequence has to fit"
            )
        if optimizer.num_iterations > 1 and self.loss.constrained_turns == "reweight":
            raise ValueError(
                f"optimizer.num_iterations is {optimizer.num_iterations} with loss.constrained_turns: reweight, whose "
                "ratios are those to the policy before each iteration, so that nothing limits how far it moves; use 1, "
                "or constrained_turns: mask"
            )
        if self.min_group_members > self.group_size:
            raise ValueError(
                f"min_group_members ({self.min_group_members}) exceeds group_size ({self.group_size}): every group "
                "would be skipped"
            )
        if self.trainer_num_gpus is not None and self.ray_head_node_address is None:
            raise ValueError(
                "trainer_num_gpus is set, but not ray_head_node_address: the trainer is an actor only on Ray"
            )
        if self.input_jsonl_fpath and self.data is not None:
            raise ValueError("both input_jsonl_fpath and data are set: use one of them")
        return self


NO_CLIPPING = 1e9
"""An epsilon so large that no ratio is clipped."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A policy gradient loss over the ratios of new to recorded token probabilities, and its advantages. See
    LossSettings for the values that these two have in common.
    """

    loss_type: Literal["grpo", "dr_grpo", "dapo", "cispo"]
    """TRL's name of the average: over each episode's tokens and then over episodes (grpo), over all tokens of the
    update (dapo, cispo), or each episode's sum divided by a constant, and then over episodes (dr_grpo). The sequences
    of an episode count as one."""
    ratio: Literal["token", "sequence"] = "token"
    """`sequence`: the geometric mean of a sequence's token ratios."""
    epsilon: float = 0.2
    epsilon_high: float = 0.2
    scale: Scale = "group"
    beta: float = 0.0
    """TRL multiplies the divergence by the ratio (arXiv 2512.02556)."""


ALGORITHMS = {
    # arXiv 2402.03300; the asymmetric interval is that of Ludic, whose scripts use the name.
    "grpo": Algorithm("grpo", epsilon_high=0.27),
    # arXiv 2503.20783: neither the standard deviation nor the length of a sequence weighs its gradient.
    "dr_grpo": Algorithm("dr_grpo", epsilon=NO_CLIPPING, epsilon_high=NO_CLIPPING, scale="none"),
    # arXiv 2503.14476
    "dapo": Algorithm("dapo", epsilon_high=0.28),
    # arXiv 2507.18071
    "gspo": Algorithm("grpo", ratio="sequence", epsilon=3e-4, epsilon_high=4e-4),
    # arXiv 2506.13585; the maximum ratio is that of Ludic.
    "cispo": Algorithm("cispo", epsilon_high=1.2),
    # arXiv 2510.13786: the loss of cispo, with the standard deviation of the batch.
    "scalerl": Algorithm("cispo", epsilon_high=5.0, scale="batch"),
    # Williams 1992, with the group's mean as baseline.
    "reinforce_baseline": Algorithm("dapo", epsilon=NO_CLIPPING, epsilon_high=NO_CLIPPING, scale="none"),
}
"""Losses by the names of the field and of the scripts that Rollyard's commands replace."""

_ALIASES = {"drgrpo": "dr_grpo"}


def algorithm_named(name: str) -> Algorithm:
    """Return the algorithm with this name. Raises OperatorError if there is none."""
    known = ALGORITHMS.get(_ALIASES.get(name, name))
    if known is None:
        raise OperatorError(f"unknown algorithm {name!r}; expected one of {', '.join(ALGORITHMS)}")
    return known
