"""Figures of an update's log-probabilities, over its micro-batches and processes: their sums, and a sample of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from accelerate.utils import gather_object

from rollyard.training.token_pairs import (
    LARGEST,
    LOG_RATIO_EDGES,
    TokenPair,
    TokenPairs,
    chosen_tokens,
    largest_of,
)
from rollyard.training.update import Update


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

    def result(self, sums: torch.Tensor | None = None, largest: torch.Tensor | None = None) -> dict[str, float]:
        """Return the figures by name; empty without a token. Arguments: the sums and maxima of all processes."""
        found = (self._sums if sums is None else sums).tolist()
        tokens, ratio, difference, entropy, kl, clipped, initial_tokens, initial_kl = found
        if not tokens:
            return {}
        max_ratio, max_difference = (self._largest if largest is None else largest).tolist()
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

    @property
    def sums(self) -> torch.Tensor:
        """Sums of this process, to be added up over processes."""
        return self._sums

    @property
    def largest(self) -> torch.Tensor:
        """Maxima of this process."""
        return self._largest


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
