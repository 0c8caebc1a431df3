"""Expected logprobs of a turn, computed from its record and the same weights in transformers.

The order is that of vLLM's sampler: the grammar masks tokens in both modes; everything else only affects
`processed_logprobs`.
"""

from __future__ import annotations

import torch

from rollyard.records.types import Json
from rollyard.services.responses.policy_logprobs import temperature_of
from tests.external.vllm.reference import Reference
from tests.external.vllm.tiny_model import VOCABULARY

ENDS = (1017, 1015)
"""The ids of `<|im_end|>` and `<|endoftext|>`, which end a turn of the tiny model."""


def from_record(reference: Reference, item: Json) -> list[float]:
    """The logprobs of a turn's last item, recomputed with the sampling parameters of `token_trace.sampling`."""
    prompt, output = item["prompt_token_ids"], item["generation_token_ids"]
    sampling = item["token_trace"]["sampling"]
    constraints: Json = sampling.get("constraints", {})
    logits = reference.logits(prompt + output)[len(prompt) - 1 : -1].clone()
    if grammar := constraints.get("structured_outputs"):
        reference.rule_out(logits, output, grammar, sampling.get("stop_token_ids", ()))
    if sampling["logprobs_mode"] == "processed_logprobs":
        for at, row in enumerate(logits):
            _choose(row, prompt, output[:at], sampling, constraints, reference)
        logits /= temperature_of(sampling)
        for row in logits:
            _narrow(row, sampling)
    return reference.of_chosen(logits, output)


def _choose(
    row: torch.Tensor, prompt: list[int], seen: list[int], sampling: Json, constraints: Json, reference: Reference
) -> None:
    """Apply allowed tokens, bad words, min_tokens, bias and penalties, in this order."""
    if allowed := constraints.get("allowed_token_ids"):
        kept = row[allowed].clone()
        row[:] = -torch.inf
        row[allowed] = kept
    for word in constraints.get("bad_words", ()):
        for ids in reference.encoded(word):
            if len(ids) == 1 or seen[-(len(ids) - 1) :] == ids[:-1]:
                row[ids[-1]] = -torch.inf
    if len(seen) < constraints.get("min_tokens", 0):
        row[[*ENDS, *sampling.get("stop_token_ids", ())]] = -torch.inf
    for token, bias in constraints.get("logit_bias", {}).items():
        row[int(token)] += bias
    _penalize(row, prompt, seen, sampling)


def _penalize(row: torch.Tensor, prompt: list[int], seen: list[int], sampling: Json) -> None:
    if (penalty := sampling["repetition_penalty"]) != 1.0:
        known = sorted({*prompt, *seen})
        row[known] = torch.where(row[known] > 0, row[known] / penalty, row[known] * penalty)
    counts = torch.bincount(torch.tensor(seen, dtype=torch.int64), minlength=VOCABULARY)
    row -= sampling.get("frequency_penalty", 0.0) * counts
    row -= sampling.get("presence_penalty", 0.0) * (counts > 0)


def _narrow(row: torch.Tensor, sampling: Json) -> None:
    """Apply min_p, top_k and top_p, in this order."""
    probabilities = row.softmax(-1)
    row[probabilities < sampling["min_p"] * probabilities.max()] = -torch.inf
    if (count := sampling["top_k"]) > 0:
        row[row < row.topk(count).values[-1]] = -torch.inf
    if sampling["top_p"] < 1.0:
        ordered, places = row.softmax(-1).sort()
        row[places[ordered.cumsum(-1) <= 1.0 - sampling["top_p"]]] = -torch.inf
