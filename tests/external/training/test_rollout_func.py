"""A user's own program with TRL's GRPOTrainer: what it makes of rollouts, and a whole training on a real engine."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from trl import GRPOConfig, GRPOTrainer

import rollyard
from rollyard.records.errors import RunError
from rollyard.training.groups import EndingRules, GroupMember, RolloutGroup, Treatment, member_of_failure, member_of_row
from rollyard.training.training_sequence import SequenceRules
from rollyard.training.trl.rollout_func import ENDING, REWARD, RowRules, trl_columns
from tests.external.training.engine_stacks import TOKEN, ServedStack
from tests.external.training.tiny_policy import make_groups, make_model, make_tokenizer
from tests.external.training.train_command import training_s
from tests.external.vllm.engine import Engine
from tests.external.vllm.tiny_model import VOCABULARY
from tests.support.doc_pages import page, programs
from tests.support.stacks import EXAMPLES, read_rows
from tests.unit.training.recorded_turns import row, turn

pytestmark = pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
RULES = RowRules(filler_id=9, temperature=1.0)


def member(*turns: Any, **more: Any) -> GroupMember:
    return member_of_row(row(*turns, **more), "task", SequenceRules(), EndingRules())


ONE = member(turn([1], [2, 3]), turn([1, 2, 3, 4], [5]), reward=0.5)
SEVERAL = member(turn([1], [2, 3]), turn([7, 8], [5]), reward=2.0)
FAILED = member_of_failure("task", 0, "server_error", Treatment.LEFT_OUT)


def test_a_rollout_is_a_row_whose_environment_tokens_have_the_mask_0() -> None:
    found = trl_columns([ONE], RULES)
    assert found["prompt_ids"] == [[1]] and found["completion_ids"] == [[2, 3, 4, 5]]
    assert found["env_mask"] == [[1, 1, 0, 1]] and found["logprobs"] == [[-0.2, -0.3, 0.0, -0.5]]
    assert found[REWARD] == [0.5] and found[ENDING] == ["done"]


def test_a_failed_rollout_has_no_reward_and_slow_and_truncated_ones_have_one_all_without_a_loss() -> None:
    slow = member_of_failure("task", 0, "timeout", Treatment.ZERO)
    found = trl_columns([ONE, FAILED, slow, member(turn([1], [2]), finish_reason="length", reward=-1.0)], RULES)
    assert math.isnan(found[REWARD][1]) and found[REWARD][2:] == [0.0, -1.0]
    assert found["completion_ids"][1:] == [[9]] * 3 and found["env_mask"][1:] == [[0]] * 3
    assert found[ENDING][1:] == ["server_error", "timeout", "length"]


def test_several_sequences_are_never_joined() -> None:
    masked = trl_columns([ONE, SEVERAL], RULES)
    assert masked["env_mask"][1] == [0] and masked[REWARD][1] == 2.0
    last = trl_columns([SEVERAL], RowRules(9, 1.0, "last"))
    assert last["prompt_ids"] == [[7, 8]] and last["completion_ids"] == [[5]] and last["env_mask"] == [[1]]
    with pytest.raises(RunError, match="2 sequences"):
        trl_columns([ONE, SEVERAL], RowRules(9, 1.0, "refuse"))


def test_training_stops_if_nothing_could_be_learned() -> None:
    with pytest.raises(RunError, match=r"of 3 rollouts .*\(2 have"):
        trl_columns([SEVERAL, FAILED, SEVERAL], RULES)
    with pytest.raises(RunError, match=r"of 1 rollouts .*\(1 .* 4 tokens\)"):
        trl_columns([ONE], RowRules(9, 1.0, max_seq_len=4))
    trl_columns([FAILED], RULES)


def test_another_sampling_temperature_stops_the_training() -> None:
    with pytest.raises(RunError, match=r"temperature 1, .* 0\.7"):
        trl_columns([ONE], RowRules(9, 0.7))


class Recording(GRPOTrainer):  # type: ignore[misc]
    seen: dict[str, Any]

    def _compute_loss(self, model: Any, inputs: Any) -> torch.Tensor:
        self.seen = inputs
        found: torch.Tensor = super()._compute_loss(model, inputs)
        return found


def run_trl(groups: list[RolloutGroup], folder: Path, **settings: Any) -> Recording:
    size = len(groups[0].members)

    def rollout_func(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        assert prompts == [prompt for prompt in prompts[::size] for _ in range(size)]
        chosen = [member for prompt in prompts[::size] for member in groups[int(prompt)].members]
        return trl_columns(chosen, RowRules(make_tokenizer().eos_token_id, 1.0, "last"))

    def reward(rollout_reward: list[float], **_: Any) -> list[float | None]:
        return [None if math.isnan(value) else value for value in rollout_reward]

    trainer = Recording(
        model=make_model(),
        args=GRPOConfig(
            output_dir=str(folder),
            max_steps=1,
            per_device_train_batch_size=size * len(groups),
            num_generations=size,
            shuffle_dataset=False,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            bf16=False,
            **settings,
        ),
        processing_class=make_tokenizer(),
        train_dataset=Dataset.from_dict({"prompt": [str(index) for index in range(len(groups))]}),
        reward_funcs=[reward],
        rollout_func=rollout_func,
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_trl_computes_our_advantages_from_the_rows(scale: Any, tmp_path: Path) -> None:
    groups = make_groups(make_model(), scale)
    endings = {member.ending for group in groups for member in group.members}
    assert {"failed", "slow", "length"} <= endings
    seen = run_trl(groups, tmp_path, scale_rewards=scale).seen
    pairs = [pair for group in groups for pair in zip(group.members, group.advantages, strict=True)]
    # TRL shuffles the rows. Those without a loss have an advantage like the others, but no token that it applies to.
    found = {ids: value for ids, value in zip(completions(seen), seen["advantages"].tolist(), strict=True) if ids}
    expected = {tuple(one.sequences[-1].completion_ids): value for one, value in pairs if one.has_loss}
    assert found == pytest.approx(expected, abs=1e-5) and len(found) > 5
    assert sorted(seen["advantages"].tolist()) == pytest.approx(sorted(value for _, value in pairs), abs=1e-5)


def completions(seen: dict[str, Any]) -> list[tuple[int, ...]]:
    """The tokens of each completion; none for one without a loss."""
    mask = seen["completion_mask"].bool()
    has_loss = (mask & seen["tool_mask"].bool()).any(-1)
    rows = zip(seen["completion_ids"], mask, has_loss, strict=True)
    return [tuple(ids[chosen].tolist()) if trained else () for ids, chosen, trained in rows]


def test_a_left_out_row_adds_no_token_to_the_loss_nor_to_its_divisor(tmp_path: Path) -> None:
    groups = make_groups(make_model())
    trainer = run_trl(groups, tmp_path, loss_type="dapo")
    mask = trainer.seen["tool_mask"] * trainer.seen["completion_mask"]
    assert trainer.seen["num_items_in_batch"].item() == mask.sum().item()
    played = sum(member.has_loss for group in groups for member in group.members)
    assert int((mask.sum(-1) > 0).sum()) == played < len(mask)


SOURCE = Path(rollyard.__file__).parent.parent


def test_the_documented_program_trains_two_steps_on_a_real_engine(
    start_stack: Callable[..., ServedStack], engine: Engine, tiny_model: Path, tmp_path: Path
) -> None:
    # Random weights end a turn with every eighth token on average.
    stack = start_stack(strict_tools=False, extra_body={"stop_token_ids": list(range(0, VOCABULARY, 8))})
    tasks = tmp_path / "tasks.jsonl"
    rows = [
        {**row, "responses_create_params": {**row["responses_create_params"], "max_output_tokens": 64}}
        for row in read_rows(EXAMPLES)
    ]
    tasks.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    (program,) = programs(page("trainers.md"))
    assert len([line for line in program.splitlines() if line]) <= 40
    file, results = tmp_path / "program.py", tmp_path / "results"
    file.write_text(program)
    environ = {**os.environ, "ROLLYARD_TOKEN": TOKEN, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    arguments = [stack.head, str(tiny_model), str(tasks), str(results)]
    done = subprocess.run(
        [sys.executable, str(file), *arguments],
        capture_output=True,
        text=True,
        timeout=training_s(),
        env=environ,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for step in (1, 2):
        rows = read_rows(results / "rollouts" / f"step_{step:06d}.jsonl")
        assert sorted((row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows) == [
            (task, repeat) for task in (0, 1) for repeat in range(4)
        ]
        turns = [item for row in rows for item in row["response"]["output"] if item.get("generation_token_ids")]
        versions = {item["token_trace"]["sampling"]["policy_version"] for item in turns}
        assert versions == {f"step_{step - 1:06d}"}
    status = httpx.get(f"{stack.policy_url}/weights", headers={"authorization": f"Bearer {TOKEN}"}).json()
    assert status["version"] == "step_000002"
    loaded = load_file(results / "weights" / "step_000002" / "model.safetensors")
    assert loaded.keys() == load_file(tiny_model / "model.safetensors").keys()
