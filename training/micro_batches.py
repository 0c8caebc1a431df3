"""Groups sequences into micro-batches of a limited number of tokens, padding included."""

from __future__ import annotations

from collections.abc import Sequence


def micro_batches(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Return the indices of the sequences of each micro-batch.

    A micro-batch takes (number of sequences) x (length of the longest) tokens. Sequences are sorted by length, so that
    little of it is padding, and micro-batches are filled up to `token_budget`.

    Raises ValueError if one sequence alone exceeds the budget.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        if lengths[index] > token_budget:
            raise ValueError(
                f"a sequence of {lengths[index]} tokens exceeds the micro-batch budget of {token_budget} tokens: raise "
                "micro_token_budget or lower max_seq_len"
            )
        # The first sequence of a micro-batch is its longest.
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= token_budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches
