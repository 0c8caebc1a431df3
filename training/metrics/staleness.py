"""Staleness: by how many updates the weights that sampled a token are older than those that the step trains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rollyard.records.errors import RunError
from rollyard.training.groups.member import GroupMember
from rollyard.training.versions import updates_of


def staleness_of(members: Iterable[GroupMember], step: int) -> Counter[int]:
    """Count the tokens with a loss by their staleness. The step with number `step` trains the weights of step - 1.

    Raises RunError if the version of a token is unknown or newer than these weights: without it, nobody can tell
    whether the rollouts are those of the policy that is trained.
    """
    versions: Counter[str] = Counter()
    for member in members:
        for sequence in member.sequences:
            for version, has_loss in zip(sequence.versions, sequence.loss_mask, strict=True):
                if has_loss:
                    if version is None:
                        raise RunError(_unknown(member))
                    versions[version] += 1
    found: Counter[int] = Counter()
    for version, tokens in versions.items():
        lag = step - 1 - updates_of(version)
        if lag < 0:
            raise RunError(
                f"step {step} trains the weights of step {step - 1}, but {tokens} tokens of its rollouts were sampled "
                f"with {version}: the rollouts are not those of this run, or it resumed from an older checkpoint "
                "without discarding them"
            )
        found[lag] += tokens
    return found


def _unknown(member: GroupMember) -> str:
    return (
        f"task {member.task_key}, rollout {member.repeat}: the version of the weights that sampled its tokens is "
        "unknown, so that its staleness is, too. Use engines that report policy_version, such as those of "
        "local_vllm_model"
    )
