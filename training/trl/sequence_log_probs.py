"""Log-probabilities of whole token sequences, for the comparison with those of the engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def sequence_log_probs(model: Any, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return, for each sequence of ids, the log-probability of every token but the first, at temperature 1.

    One sequence at a time, so that no padding is needed. Under FSDP, all processes must call it with the same
    sequences.
    """
    was_training, found = model.training, []
    device = next(model.parameters()).device
    model.eval()
    try:
        for sequence in sequences:
            ids = torch.tensor([list(sequence)], device=device)
            with torch.no_grad():
                logits = model(input_ids=ids).logits[0, :-1].float()
            found.append(torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0].tolist())
    finally:
        model.train(was_training)
    return found
