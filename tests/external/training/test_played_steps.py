"""Steps that a real engine plays: each has the weights that the engine has at the time."""

from __future__ import annotations

from pathlib import Path

from rollyard.services.datasets.tasks import TaskFile
from rollyard.training.batch_source import StackBatchSource
from rollyard.training.run_folder import TrainingPaths
from rollyard.training.train_config import TrainConfig
from rollyard.training.training_stack import TrainingStack
from rollyard.training.update import Batch
from rollyard.training.weight_publisher import PolicyClient
from tests.external.training.conftest import StartStack
from tests.external.training.engine_stacks import FORCED_CALLS
from tests.support.stacks import AGENT, EXAMPLES
from tests.support.waiting import deadline_s


async def two_steps(stack: TrainingStack, folder: Path, weights: Path, max_staleness: int) -> list[Batch]:
    """Play two steps, with other weights as the only update."""
    config = TrainConfig(
        model="m",
        output_dir=folder,
        agent_name=AGENT,
        groups_per_step=2,
        group_size=2,
        max_steps=2,
        max_staleness=max_staleness,
        responses_create_params={"temperature": 1.0, "max_output_tokens": 64},
        loss={"constrained_turns": "reweight"},
    )
    source = StackBatchSource(stack, TaskFile(EXAMPLES, agent=AGENT, limit=None), config, TrainingPaths(folder), {})
    policy = PolicyClient(stack.clients.client.transport, stack.policy_url, stack.token)
    first = await source.next_batch(1)
    await policy.update(weights, "step_000001", deadline_s())
    second = await source.next_batch(2)
    await source.close()
    assert first is not None and second is not None
    return [first, second]


def versions_of(batch: Batch) -> set[str | None]:
    sequences = [sequence for group in batch.groups for member in group.members for sequence in member.sequences]
    assert sequences
    return {
        version
        for sequence in sequences
        for version, has_loss in zip(sequence.versions, sequence.loss_mask, strict=True)
        if has_loss
    }


async def test_in_turn_each_step_has_the_weights_of_the_update_before_it(
    start_stack: StartStack, other_model: Path, tmp_path: Path
) -> None:
    async with start_stack(policy_version="step_000000", **FORCED_CALLS).connected() as stack:
        first, second = await two_steps(stack, tmp_path / "run", other_model, max_staleness=0)
    assert (versions_of(first), versions_of(second)) == ({"step_000000"}, {"step_000001"})
    assert not first.failures and not second.failures


async def test_a_step_that_is_played_during_an_update_loses_no_rollout(
    start_stack: StartStack, other_model: Path, tmp_path: Path
) -> None:
    async with start_stack(policy_version="step_000000", **FORCED_CALLS).connected() as stack:
        first, second = await two_steps(stack, tmp_path / "run", other_model, max_staleness=1)
    assert versions_of(first) == {"step_000000"}
    assert versions_of(second) <= {"step_000000", "step_000001"}
    assert sum(len(group.members) for group in second.groups) == 4
    assert not second.failures
