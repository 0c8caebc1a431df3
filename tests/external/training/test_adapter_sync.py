"""A real engine samples with the trainer's LoRA adapter, loaded as it is or merged into the weights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import peft
import pytest
import torch
from transformers import Qwen3ForCausalLM

from rollyard.records.errors import RunError
from rollyard.services.http.transport import HttpTransport
from rollyard.training.train_config import LoraSettings, WeightSettings
from rollyard.training.trl.policy_trainer import lora_config, sequence_log_probs
from rollyard.training.trl.save_policy import AdapterMode, write_policy
from rollyard.training.weight_publisher import ParityProbe, PolicyClient, VersionFolders, WeightKind, WeightPublisher
from tests.external.training.conftest import StartStack
from tests.external.training.engine_stacks import TOKEN
from tests.external.training.tiny_policy import make_tokenizer
from tests.external.vllm.calls import asking
from tests.external.vllm.engine import Engine, in_flight
from tests.support.waiting import deadline_s

SEQUENCES = [[5, 6, 7, 8, 9, 10] * 20, [300, 301, 17, 40, 41]]
CLOSE = 1e-4


def adapted(folder: Path) -> Any:
    """A model with an adapter that does nothing yet."""
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return peft.get_peft_model(model, lora_config(LoraSettings(rank=4, alpha=8)))


def train(model: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weights in sorted(model.named_parameters()):
            if "lora_B" in name:
                weights.normal_(0.0, 0.05, generator=generator)


def probe(client: PolicyClient, model: Any) -> ParityProbe:
    return ParityProbe(client, lambda ids: sequence_log_probs(model, ids), WeightSettings(timeout_s=deadline_s()))


@asynccontextmanager
async def publishing(
    start_stack: StartStack, folder: Path, kind: WeightKind, **settings: Any
) -> AsyncIterator[tuple[WeightPublisher, PolicyClient]]:
    transport = HttpTransport()
    client = PolicyClient(transport, start_stack(**settings).policy_url, TOKEN)
    yield WeightPublisher(client, VersionFolders(folder, keep=2), timeout_s=deadline_s(), kind=kind), client
    await transport.close()


@pytest.mark.parametrize("kind", ["adapter", "weights"])
async def test_after_every_update_engine_and_trainer_agree(
    kind: WeightKind, start_stack: StartStack, tiny_model: Path, tmp_path: Path
) -> None:
    model, tokenizer = adapted(tiny_model), make_tokenizer()
    modes: dict[WeightKind, AdapterMode] = {"adapter": "adapter", "weights": "merge"}
    save = partial(write_policy, model, tokenizer, lora=modes[kind])
    before = sequence_log_probs(model, SEQUENCES)
    async with publishing(start_stack, tmp_path / "weights", kind, weights_check="values") as (publisher, client):
        for step in (1, 2, 3):
            train(model, step)
            await publisher.publish(f"step_{step:06d}", save)
            parity = await probe(client, model).measure(f"step_{step:06d}", SEQUENCES)
            assert parity.mean < CLOSE
    after = sequence_log_probs(model, SEQUENCES)
    assert max(abs(one - other) for one, other in zip(before[0], after[0], strict=True)) > 0.1


async def test_a_turn_in_flight_ends_with_the_adapter_with_which_it_began(
    engine: Engine, start_stack: StartStack, tiny_model: Path, tmp_path: Path
) -> None:
    models = [adapted(tiny_model), adapted(tiny_model)]
    body = {**asking(seed=None, temperature=1.0), "structured_outputs": None, "max_tokens": 600, "ignore_eos": True}
    async with publishing(start_stack, tmp_path / "weights", "adapter") as (publisher, client):
        train(models[0], 1)
        train(models[1], 2)
        await publisher.publish("step_000001", lambda folder: write_policy(models[0], None, folder, lora="adapter"))
        calling = await in_flight(engine, post(client, "/v1/chat/completions", body))
        await publisher.publish("step_000002", lambda folder: write_policy(models[1], None, folder, lora="adapter"))
        status, answer = await calling
    assert status == 200, answer
    message = answer["choices"][0]["message"]
    version = message["token_trace"]["sampling"]["policy_version"]
    # The second one if this machine is so slow that the turn was aborted and repeated.
    model = models[["step_000001", "step_000002"].index(version)]
    ids, prompt = message["prompt_token_ids"] + message["generation_token_ids"], len(message["prompt_token_ids"])
    assert "policy_version_end" not in message["token_trace"]["sampling"]
    assert message["generation_log_probs"] == pytest.approx(
        sequence_log_probs(model, [ids])[0][prompt - 1 :], abs=CLOSE
    )


async def test_weights_that_are_not_the_trainers_stop_the_training(
    start_stack: StartStack, tiny_model: Path, other_model: Path, tmp_path: Path
) -> None:
    other, trained = (Qwen3ForCausalLM.from_pretrained(name, dtype=torch.float32) for name in (other_model, tiny_model))
    async with publishing(start_stack, tmp_path / "weights", "weights") as (publisher, client):
        await publisher.publish("step_000001", other.save_pretrained)
        await probe(client, other).measure("step_000001", SEQUENCES)
        with pytest.raises(RunError, match="step_000001"):
            await probe(client, trained).measure("step_000001", SEQUENCES)


async def post(client: PolicyClient, path: str, body: Any) -> tuple[int, Any]:
    headers = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
    answer = await client._transport.send("POST", f"{client._url}{path}", orjson.dumps(body), headers, deadline_s())
    return answer.status, orjson.loads(answer.body)
