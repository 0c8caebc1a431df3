"""TRL's real GRPOTrainer generates and plays on an environment of a running stack."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template

import rollyard
from rollyard.training.trl.stack_environments import StackEnvironments, environment_rows
from rollyard.training.trl.stack_session import StackSession
from tests.external.training.tiny_policy import make_model, make_tokenizer
from tests.support.background_loop import background_loop
from tests.support.stacks import EXAMPLES, SOKOBAN, read_rows

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackSession]:
    with background_loop() as run:
        running = rollyard.stack(SOKOBAN, colocate=True, folder=tmp_path_factory.mktemp("stack"))
        run(running.start())
        session = StackSession(running.head_url.removeprefix("http://"))
        yield session
        session.close()
        run(running.stop())


@pytest.fixture
def environments(session: StackSession) -> StackEnvironments:
    return StackEnvironments(session, "grl_sokoban_resources_server")


def test_transformers_reads_the_schema_of_each_tool_and_the_dataset_has_messages_and_rows(
    environments: StackEnvironments,
) -> None:
    environment: Any = environments.factory()
    schema = get_json_schema(environment.step)["function"]
    assert schema["name"] == "step" and schema["parameters"]["required"] == ["actions"]
    assert schema["parameters"]["properties"]["actions"]["type"] == "array"
    dataset = environment_rows(EXAMPLES, 2)
    assert len(dataset) == 2 and [message["role"] for message in dataset[0]["prompt"]] == ["system", "user"]
    assert json.loads(dataset[0]["row"]) == read_rows(EXAMPLES)[0]


def test_the_trainer_plays_the_calls_of_the_model_and_trains_on_the_verdicts(
    environments: StackEnvironments, tmp_path: Path
) -> None:
    """The tiny model generates noise, so that each first turn is replaced with a call; the rest is TRL's own."""
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_bytes(b"\n".join(orjson.dumps(row) for row in read_rows(EXAMPLES)[:2]))
    tokenizer = make_tokenizer()
    tokenizer.chat_template = qwen3_chat_template
    text = '<tool_call>\n{"name": "step", "arguments": {"actions": ["Up"]}}\n</tool_call><|im_end|>'
    call = tokenizer(text, add_special_tokens=False)["input_ids"]
    rewards: list[float | None] = []
    outputs: list[str] = []

    def reward(*, completions: Any, **columns: Any) -> list[float | None]:
        outputs.extend(each["content"] for messages in completions for each in messages if each["role"] == "tool")
        rewards.extend(found := environments.reward(completions=completions, **columns))
        return found

    class CallingTrainer(GRPOTrainer):  # type: ignore[misc]
        has_called = False

        def _generate_single_turn(self, prompt_ids: Any, *arguments: Any, **more: Any) -> Any:
            if not self.has_called:
                self.has_called = True
                return [list(call) for _ in prompt_ids], None
            self.generation_config.max_new_tokens = 8  # noise that never ends
            return super()._generate_single_turn(prompt_ids, *arguments, **more)

    trainer = CallingTrainer(
        model=make_model(),
        processing_class=tokenizer,
        args=GRPOConfig(
            output_dir=str(tmp_path / "trl"),
            max_steps=1,
            per_device_train_batch_size=4,
            num_generations=2,
            max_completion_length=256,
            bf16=False,
            use_cpu=True,
            report_to=[],
        ),
        train_dataset=environment_rows(tasks),
        environment_factory=environments.factory,
        reward_funcs=reward,
    )
    assert [tool.__name__ for tool in trainer.tools] == ["step"]
    trainer.train()
    boards = [json.loads(output)["observation"] for output in outputs]
    assert len(boards) == 4 and all("P" in board or "S" in board for board in boards)
    assert len(rewards) == 4 and all(value is not None and math.isfinite(value) for value in rewards)
    assert len(set(rewards)) <= 2  # both rollouts of a task made the same move
