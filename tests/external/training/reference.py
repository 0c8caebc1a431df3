"""GRPO written again, without TRL and without padding: what the trainer's gradients are compared with."""

from __future__ import annotations

from typing import Any

import torch

from rollyard.training.groups import RolloutGroup
from rollyard.training.train_config import Algorithm


def reference_loss(
    model: Any, groups: list[RolloutGroup], algorithm: Algorithm, *, length_constant: int, reference_model: Any = None
) -> torch.Tensor:
    counted = [[one.reward for one in group.members if one.counts] for group in groups]
    everything = torch.tensor([reward for rewards in counted for reward in rewards])
    losses, tokens = [], 0  # an entry per episode
    for group, rewards in zip(groups, counted, strict=True):
        known = torch.tensor(rewards)
        if len(known) < 2 or known.std() < 1e-6:
            continue
        divisor = {"group": known.std() + 1e-4, "batch": everything.std() + 1e-4, "none": 1.0}[algorithm.scale]
        for member in group.members:
            of_episode = []
            for sequence in member.sequences if member.treatment == "played" else ():
                advantage = (member.reward - known.mean()) / divisor
                mask = torch.tensor(sequence.loss_mask).bool()
                own = log_probs(model, sequence)[mask]
                log_ratio = own - torch.tensor(sequence.log_probs)[mask]
                ratio = (log_ratio.mean() if algorithm.ratio == "sequence" else log_ratio).exp()
                if algorithm.loss_type == "cispo":
                    loss = -ratio.detach().clamp(max=algorithm.epsilon_high) * advantage * own
                else:
                    clipped = ratio.clamp(1 - algorithm.epsilon, 1 + algorithm.epsilon_high)
                    loss = -torch.minimum(ratio * advantage, clipped * advantage)
                if algorithm.beta:
                    other = log_probs(reference_model, sequence)[mask].detach() - own
                    loss = loss + algorithm.beta * ratio * (other.exp() - other - 1)  # arXiv 2512.02556
                of_episode.append(loss.expand(len(own)))
                tokens += len(own)
            losses += [torch.cat(of_episode)] if of_episode else []
    if algorithm.loss_type == "grpo":
        return torch.stack([loss.mean() for loss in losses]).mean()
    if algorithm.loss_type == "dr_grpo":
        return torch.stack([loss.sum() / length_constant for loss in losses]).mean()
    return torch.stack([loss.sum() for loss in losses]).sum() / tokens


def log_probs(model: Any, sequence: Any) -> torch.Tensor:
    ids = torch.tensor([sequence.prompt_ids + sequence.completion_ids])
    logits = model(input_ids=ids).logits[0, :-1].float() / sequence.temperature
    start = len(sequence.prompt_ids) - 1
    return torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[start:, 0]
