"""Sequences as the tensors that TRL's loss reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from rollyard.training.sequences.training_sequence import TrainingSequence

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
