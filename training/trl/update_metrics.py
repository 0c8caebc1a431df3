"""UpdateMetrics: figures of an update's log-probabilities, summed over its micro-batches and processes."""

from __future__ import annotations

import torch


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
