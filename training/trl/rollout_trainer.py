"""RolloutTrainer: TRL's GRPOTrainer, fed with rollouts of a running stack instead of its own generations."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from datasets import Dataset
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from rollyard.records.errors import RunError
from rollyard.training.training_sequence import TrainingSequence
from rollyard.training.update import (
    LARGEST,
    LOG_RATIO_EDGES,
    TokenPair,
    TokenPairs,
    Update,
    chosen_tokens,
    largest_of,
    micro_batches,
)

OF_LAST_ITERATION = ("ratio_mean", "ratio_max", "kl", "clip_rate")
"""Figures that show how far the iterations have moved the policy from the one that played."""


class RolloutTrainer(GRPOTrainer):  # type: ignore[misc]  # TRL is not installed where mypy runs
    """One step of the Trainer is one update. Its micro-batches are limited by tokens, not by sequences, and the
    gradient is the same for every division into micro-batches and processes.

    An episode counts once, in however many sequences its agent has cut it (`token_weights`).

    The recorded log-probabilities are the old policy's: ratios, and thus clipping, cover the difference between engine
    and trainer as well as that between versions of the weights.
    """

    def __init__(
        self,
        *,
        model: Any,
        args: GRPOConfig,
        processing_class: Any,
        next_update: Callable[[int], Update | None],
        micro_token_budget: int,
        max_importance_weight: float,
        iterations: int = 1,
        **options: Any,
    ) -> None:
        """`next_update`: returns the update with this number, counted from 1; None if training is over. It is called in
        the main process only.
        """
        self._next_update = next_update
        self._micro_token_budget = micro_token_budget
        self._max_importance_weight = max_importance_weight
        self._iterations = iterations
        self._outputs = torch.empty(0), torch.empty(0)
        self.update_metrics: dict[str, float] = {}
        """Figures of the latest update: `loss`, and those of UpdateMetrics, of the first iteration if not named in
        OF_LAST_ITERATION."""
        self.token_pairs: TokenPairs | None = None
        """Log-probabilities of engine and trainer of the latest update, before its first step."""
        super().__init__(
            model=model,
            reward_funcs=[_no_reward],
            args=args,
            processing_class=processing_class,
            # TRL requires a dataset. Nothing reads it: see get_train_dataloader.
            train_dataset=Dataset.from_dict({"prompt": [""] * args.per_device_train_batch_size}),
            **options,
        )
        self.remove_callback(PrinterCallback)
        # TRL averages over the sequences of a micro-batch. Its sum with weights is the same for every division of the
        # tokens, into micro-batches and into sequences.
        self._average = args.loss_type
        self.router_aux_loss_coef: float
        self._router_coefficient = self.router_aux_loss_coef
        self.loss_type = "cispo" if args.loss_type == "cispo" else "dapo"

    def get_train_dataloader(self) -> Iterator[dict[str, Update]]:
        """Yield the updates, the same in every process. There is no length, and nothing is fetched in advance: the
        rollouts of the next update need the weights of this one.
        """
        while True:
            found: list[Update | None] = [None]
            if self.accelerator.is_main_process:
                found = [self._next_update(self.state.global_step + 1)]
            if self.accelerator.num_processes > 1:
                broadcast_object_list(found)
            if found[0] is None:
                break
            yield {"update": found[0]}
        self.control.should_training_stop = True

    def training_step(self, model: Any, inputs: dict[str, Update], num_items_in_batch: Any = None) -> torch.Tensor:
        """Add the gradient of an update, and return its loss. Earlier iterations than the last are done here, too."""
        model.train()
        update = inputs["update"]
        pairs = PairRecorder(update, self.accelerator.device)
        total, first = self._add_gradient(model, update, pairs)
        self.token_pairs = pairs.result(self.accelerator)
        self.update_metrics = {"loss": total.item(), **first}
        for _ in range(1, self._iterations):
            self._get_grad_norm(model, grad_norm=self._clip_grad_norm(model))
            self.optimizer.step()
            model.zero_grad()
            _, last = self._add_gradient(model, update)
            self.update_metrics |= {name: last[name] for name in OF_LAST_ITERATION if name in last}
        return total

    def _add_gradient(
        self, model: Any, update: Update, pairs: PairRecorder | None = None
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Add the gradient of an update at the current weights. Return its loss and figures. `pairs` gets the
        log-probabilities.
        """
        device = self.accelerator.device
        metrics, total = UpdateMetrics(device), torch.zeros((), device=device)
        parts = self._parts(update)
        weights = token_weights(update, self._average, self.max_completion_length)
        for index, part in enumerate(parts):
            is_last = index == len(parts) - 1
            with contextlib.nullcontext() if is_last else self.accelerator.no_sync(model):
                tensors = self._inputs(model, update, part, weights)
                # TRL adds the auxiliary loss of a mixture of experts to each micro-batch, and processes are averaged.
                share = len(part.indices) * self.accelerator.num_processes / len(update.sequences)
                self.router_aux_loss_coef = self._router_coefficient * share
                with self._local_figures():
                    loss = self._compute_loss(model, tensors) * part.counts
                if part.counts:
                    self._measure(metrics, tensors, pairs, part.indices)
                self.accelerator.backward(loss)
            total += loss.detach()
        self._metrics["train"].clear()  # TRL's, which are means over micro-batches; ours are over tokens
        return self.accelerator.reduce(total, reduction="mean"), metrics.result(self.accelerator)

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: the Trainer's estimate reads `input_ids`, which updates do not have."""
        return 0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Keep the figures that only the Trainer knows with those of the update."""
        self.update_metrics |= {name: logs[name] for name in ("grad_norm", "learning_rate") if name in logs}
        super().log(logs, start_time)

    def _get_grad_norm(self, *arguments: Any, **options: Any) -> Any:
        """Return the norm of the gradient, before the optimizer uses it. Raises RunError if it is not finite: the
        weights, and the next checkpoint with them, would be lost.
        """
        norm = super()._get_grad_norm(*arguments, **options)
        if norm is not None and not math.isfinite(norm):
            raise RunError(
                f"the gradient of update {self.state.global_step + 1} is {float(norm)} (loss: "
                f"{self.update_metrics['loss']:g}, largest ratio: {self.update_metrics.get('ratio_max', math.nan):g}); "
                "no checkpoint and no engine gets weights of this update. Lower optimizer.learning_rate, and check the "
                "rewards and, in metrics.jsonl, train/ratio_max and train/parity_max"
            )
        return norm

    @contextlib.contextmanager
    def _local_figures(self) -> Iterator[None]:
        """Keep TRL's loss from gathering figures that are dropped anyway. It gathers a value per sequence, which is
        undefined for micro-batches with different numbers of sequences.
        """
        self.accelerator.gather = self.accelerator.reduce = lambda tensor, **_: tensor
        try:
            yield
        finally:
            del self.accelerator.gather, self.accelerator.reduce

    def _parts(self, update: Update) -> list[_Part]:
        """Return this process's micro-batches. All processes have the same number, as collective operations require."""
        batches = micro_batches([sequence.length for sequence in update.sequences], self._micro_token_budget)
        processes = self.accelerator.num_processes
        parts = [_Part(indices) for indices in batches]
        parts += [_Part(indices, counts=False) for indices in batches[-1:]] * (-len(parts) % processes)
        return parts[self.accelerator.process_index :: processes]

    def _inputs(self, model: Any, update: Update, part: _Part, weights: TokenWeights) -> Inputs:
        tensors = micro_batch_inputs(
            [update.sequences[index] for index in part.indices],
            [update.advantages[index] for index in part.indices],
            pad_id=self._tokenizer.pad_token_id,
            device=self.accelerator.device,
        )
        of_part = torch.tensor([weights.of_sequences[index] for index in part.indices], device=self.accelerator.device)
        tensors["tool_mask"] = tensors["tool_mask"] * of_part[:, None]
        tensors["num_items_in_batch"] = torch.tensor(weights.divisor, device=self.accelerator.device)
        if any(any(update.sequences[index].reweighted) for index in part.indices):
            self._reweight(tensors, self._log_probs(model, tensors))
        if self.beta:
            if self.ref_model is not None:
                tensors["ref_per_token_logps"] = self._log_probs(self.ref_model, tensors)
            else:
                with self.accelerator.unwrap_model(model).disable_adapter():
                    tensors["ref_per_token_logps"] = self._log_probs(model, tensors)
        return tensors

    def _reweight(self, tensors: Inputs, own: torch.Tensor) -> None:
        """Multiply the advantages of tokens from a constrained distribution with their importance weights. Their ratios
        are then those to the policy before the update.
        """
        chosen, recorded = tensors["reweighted"], tensors["old_per_token_logps"]
        weights = (own - recorded).exp().clamp(max=self._max_importance_weight)
        tensors["advantages"] = torch.where(chosen, tensors["advantages"] * weights, tensors["advantages"])
        tensors["old_per_token_logps"] = torch.where(chosen, own, recorded)

    def _log_probs(self, model: Any, tensors: Inputs) -> torch.Tensor:
        """Return the log-probabilities of the completions, (B, T), without a gradient."""
        ids = torch.cat([tensors["prompt_ids"], tensors["completion_ids"]], 1)
        mask = torch.cat([tensors["prompt_mask"], tensors["completion_mask"]], 1)
        with torch.no_grad():
            found, _, _ = super()._get_per_token_logps_and_entropies(
                model, ids, mask, tensors["completion_ids"].size(1)
            )
        return found

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **options: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*arguments, **options)
        if found[1] is not None:  # computed for the loss, not for a comparison with the engines
            self._outputs = found[0].detach(), found[1].detach()
        return found

    def _measure(self, metrics: UpdateMetrics, tensors: Inputs, pairs: PairRecorder | None, indices: list[int]) -> None:
        own, entropies = self._outputs
        recorded, mask, advantages = tensors["old_per_token_logps"], tensors["tool_mask"], tensors["advantages"]
        log_ratio = own - recorded
        if self.importance_sampling_level == "sequence":
            log_ratio = ((log_ratio * mask).sum(-1) / mask.sum(-1))[:, None].expand_as(own)
        ratio = log_ratio.exp()
        if self.loss_type == "cispo":
            clipped = ratio > self.epsilon_high
        else:
            clipped = (ratio < 1 - self.epsilon_low) & (advantages < 0) | (ratio > 1 + self.epsilon_high) & (
                advantages > 0
            )
        metrics.add(own, recorded, entropies, mask, clipped, tensors.get("ref_per_token_logps"))
        if pairs is not None:
            pairs.add(indices, own, recorded, entropies, mask * ~tensors["reweighted"], clipped)


@dataclass(frozen=True, slots=True)
class TokenWeights:
    """The loss of an update is the weighted sum of its tokens' losses, divided by `divisor`."""

    of_sequences: list[float]
    """The weight of each token with a loss, by sequence; at least 1, because TRL divides by no smaller sum."""
    divisor: float


def token_weights(update: Update, average: str, length_constant: int) -> TokenWeights:
    """`average`: as in Algorithm.loss_type, where an episode counts as one sequence of all its tokens."""
    tokens, total = update.episode_tokens, update.loss_tokens
    if average == "grpo":
        return TokenWeights([total / tokens[episode] for episode in update.episodes], float(total * len(tokens)))
    divisor = len(tokens) * length_constant if average == "dr_grpo" else total
    return TokenWeights([1.0] * len(update.sequences), float(divisor))


@dataclass(frozen=True, slots=True)
class _Part:
    """A micro-batch of a process. `counts` is False if it only keeps the process in step with the others."""

    indices: list[int]
    counts: bool = True


def _no_reward(**_: Any) -> list[float]:
    raise AssertionError("the rewards are those of the rollouts")


Inputs = dict[str, torch.Tensor]


def micro_batch_inputs(
    sequences: Sequence[TrainingSequence], advantages: Sequence[float], *, pad_id: int, device: torch.device
) -> Inputs:
    """Return the tensors of a micro-batch of B sequences. Prompts are padded left to P tokens, completions right to T.

        prompt_ids, prompt_mask            (B, P), the mask is 1 for tokens and 0 for padding
        completion_ids, completion_mask    (B, T), likewise
        tool_mask                          (B, T), 1 for tokens with a loss
        advantages                         (B, T)
        old_per_token_logps, reweighted    (B, T), the former is 0 for tokens without a loss: their ratios, which TRL
                                           computes before it masks them, must be finite

    Masks follow from lengths, never from ids: a model can generate its padding token, which often is its end of turn.
    """
    prompt = max(len(sequence.prompt_ids) for sequence in sequences)
    completion = max(len(sequence.completion_ids) for sequence in sequences)

    def left(values: Iterable[Sequence[int]], fill: int = 0) -> torch.Tensor:
        return torch.tensor([[fill] * (prompt - len(row)) + [*row] for row in values], device=device)

    def right(values: Iterable[Sequence[float]], fill: int = 0, dtype: torch.dtype = torch.long) -> torch.Tensor:
        return torch.tensor([[*row] + [fill] * (completion - len(row)) for row in values], dtype=dtype, device=device)

    return {
        "prompt_ids": left((sequence.prompt_ids for sequence in sequences), pad_id),
        "prompt_mask": left([1] * len(sequence.prompt_ids) for sequence in sequences),
        "completion_ids": right((sequence.completion_ids for sequence in sequences), pad_id),
        "completion_mask": right([1] * len(sequence.completion_ids) for sequence in sequences),
        "tool_mask": right(sequence.loss_mask for sequence in sequences),
        "advantages": torch.tensor(advantages, dtype=torch.float32, device=device)[:, None].repeat(1, completion),
        "old_per_token_logps": right((sequence.loss_log_probs for sequence in sequences), dtype=torch.float32),
        "reweighted": right((sequence.reweighted for sequence in sequences), dtype=torch.bool),
    }


class UpdateMetrics:
    """Compares the policy's log-probabilities with the recorded ones. Only tokens with a loss count."""

    def __init__(self, device: torch.device) -> None:
        # tokens, sum of ratios, sum of |difference|, sum of entropies, sum of the k3 estimate of KL, tokens that clip,
        # tokens with the initial policy's log-probability, sum of the k3 estimate of KL from it
        self._sums = torch.zeros(8, dtype=torch.float64, device=device)
        self._largest = torch.zeros(2, dtype=torch.float64, device=device)  # ratio, |difference|

    def add(
        self,
        own: torch.Tensor,
        recorded: torch.Tensor,
        entropies: torch.Tensor,
        mask: torch.Tensor,
        clipped: torch.Tensor,
        initial: torch.Tensor | None = None,
    ) -> None:
        """Add a micro-batch. All tensors are (B, T); log-probabilities and entropies in nats, `clipped` is True where
        the loss has no gradient because the ratio is clipped. `initial`: log-probabilities of the initial policy.
        """
        chosen = mask.bool()
        difference = (own - recorded)[chosen].double()
        if not difference.numel():
            return
        ratio = difference.exp()
        # k3 of http://joschu.net/blog/kl-approx.html: an unbiased estimate of KL(recorded policy || new policy)
        kl = ratio - 1 - difference
        if initial is not None:
            log_ratio = (initial - own)[chosen].double()
            self._sums[6] += log_ratio.numel()
            self._sums[7] += (log_ratio.exp() - 1 - log_ratio).sum()
        values = [ratio, difference.abs(), entropies[chosen].double(), kl, clipped[chosen].double()]
        self._sums[:6] += torch.stack([torch.ones_like(ratio).sum(), *(value.sum() for value in values)])
        self._largest = torch.maximum(self._largest, torch.stack([ratio.max(), difference.abs().max()]))

    def result(self, accelerator: Any) -> dict[str, float]:
        """Return the figures of all processes by name, which have to call this together; empty without a token."""
        found = accelerator.reduce(self._sums, reduction="sum").tolist()
        tokens, ratio, difference, entropy, kl, clipped, initial_tokens, initial_kl = found
        max_ratio, max_difference = accelerator.gather(self._largest).view(-1, 2).max(0).values.tolist()
        if not tokens:
            return {}
        return {
            "ratio_mean": ratio / tokens,
            "ratio_max": max_ratio,
            "parity_mean": difference / tokens,
            "parity_max": max_difference,
            "entropy": entropy / tokens,
            "kl": kl / tokens,
            **({"kl_initial": initial_kl / initial_tokens} if initial_tokens else {}),
            "clip_rate": clipped / tokens,
        }


class PairRecorder:
    """Each process records the tokens of its own micro-batches."""

    def __init__(self, update: Update, device: torch.device) -> None:
        self._chosen = chosen_tokens(update)
        self._edges = torch.tensor(LOG_RATIO_EDGES, dtype=torch.float64, device=device)
        # The numbers of the histogram, tokens, and tokens that are clipped.
        self._sums = torch.zeros(len(LOG_RATIO_EDGES) + 3, dtype=torch.long, device=device)
        self._sample: list[TokenPair] = []
        self._largest: list[TokenPair] = []

    def add(
        self,
        indices: Sequence[int],
        own: torch.Tensor,
        recorded: torch.Tensor,
        entropies: torch.Tensor,
        mask: torch.Tensor,
        clipped: torch.Tensor,
    ) -> None:
        """Add the micro-batch of these sequences; all tensors are (B, T), and 1 in `mask` means that a token counts."""
        counted = mask.bool()
        difference = (own - recorded).double()
        bins = torch.bucketize(difference[counted], self._edges)
        self._sums[:-2] += torch.bincount(bins, minlength=len(self._sums) - 2)
        self._sums[-2] += counted.sum()
        self._sums[-1] += (clipped & counted).sum()

        def pair(row: int, position: int) -> TokenPair:
            engine, trainer, entropy = (float(values[row, position]) for values in (recorded, own, entropies))
            return TokenPair(indices[row], position, engine, trainer, entropy, bool(clipped[row, position]))

        for row, index in enumerate(indices):
            positions = [position for position in self._chosen.get(index, ()) if counted[row, position]]
            self._sample += [pair(row, position) for position in positions]
        sizes = torch.where(counted, difference.abs(), torch.full_like(difference, -1.0)).flatten()
        top = torch.topk(sizes, min(LARGEST, int(counted.sum()))).indices.tolist()
        found = [pair(*divmod(place, own.size(1))) for place in top]
        self._largest = list(largest_of([*self._largest, *found]))

    def result(self, accelerator: Any) -> TokenPairs:
        """Return the pairs of all processes, which have to call this together."""
        sums = accelerator.reduce(self._sums, reduction="sum").tolist()
        sample, largest = self._sample, self._largest
        if accelerator.num_processes > 1:
            sample, largest = gather_object(sample), gather_object(largest)
        *histogram, tokens, clipped = sums
        ordered = sorted(sample, key=lambda one: (one.sequence, one.position))
        return TokenPairs(tokens, clipped, tuple(histogram), tuple(ordered), largest_of(largest))
