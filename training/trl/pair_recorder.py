"""PairRecorder: collects log-probabilities of engine and trainer over the micro-batches of an update."""

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
