"""On a CPU, vLLM mishandles some weight updates and crashes on others: these are refused there and only there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from tests.support.checkpoints import write_checkpoint, write_tied_checkpoint
from tests.support.token_clients import TEXT_TURN, user_message
from tests.support.token_engine import TokenEngine
from tests.support.weight_engine import STARTED, WeightEngine, trainer_server

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
SEEDED: list[tuple[str, Any]] = [
    ("/v1/chat/completions", {**CHAT, "seed": 0}),
    ("/v1/responses", {"input": "hi", "metadata": {"extra_body": '{"seed": 7}'}}),
    ("/v1/completions", {"prompt": [1], "seed": 7}),
    ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"seed": 7}}),
    ("/inference/v1/generate", {"token_ids": [1], "seed": None, "sampling_params": {"seed": 7}}),
]


@pytest.mark.parametrize(("device", "status"), [("cpu", 400), ("cuda", 200)])
async def test_new_weights_for_a_tied_model_are_refused_on_a_cpu(tmp_path: Path, device: str, status: int) -> None:
    engine = WeightEngine(root=write_tied_checkpoint(tmp_path / "base"), device=device)
    async with trainer_server(engine, weights_check="values") as policy:
        update_status, content = await policy.update(write_tied_checkpoint(tmp_path / "new", seed=1))
        assert update_status == status
        if device == "cpu":
            assert "output head" in content["detail"]
            await policy.post("/pause")
            assert (await policy.post("/start_weight_update", {}))[0] == 400
            assert engine.weights == str(tmp_path / "base")


async def test_new_weights_for_an_untied_model_are_accepted_on_a_cpu(tmp_path: Path) -> None:
    engine = WeightEngine(root=write_checkpoint(tmp_path / "base"), device="cpu")
    async with trainer_server(engine, weights_check="values") as policy:
        assert (await policy.update(write_checkpoint(tmp_path / "new", seed=1)))[0] == 200


async def test_a_seeded_request_is_refused_where_weights_may_be_updated_on_a_cpu() -> None:
    engine = WeightEngine(device="cpu")
    async with trainer_server(engine) as policy:
        for path, body in SEEDED:
            asked = engine.paths.count(path)
            status, content = await policy.post(path, body)
            assert (status, "seed" in content["detail"], engine.paths.count(path)) == (400, True, asked)
            assert await policy.call_model() == (200, STARTED)


async def test_a_seeded_request_is_answered_everywhere_else() -> None:
    elsewhere: list[Json] = [{"device": "cuda"}, {"trainer_endpoints": False}, {"sampling_overrides": {"seed": None}}]
    for settings in elsewhere:
        more = {name: value for name, value in settings.items() if name != "device"}
        engine = WeightEngine(device=settings.get("device", "cpu"))
        async with trainer_server(engine, **more) as policy:
            for path, body in SEEDED[:2]:
                assert (await policy.post(path, body))[0] == 200


async def test_settings_that_seed_every_request_are_refused_at_startup() -> None:
    seeded: list[Json] = [{"extra_body": {"seed": 1}}, {"sampling_overrides": {"seed": 0}}]
    for settings in seeded:
        with pytest.raises(OperatorError, match="found seed"):
            async with trainer_server(WeightEngine(device="cpu"), **settings):
                pass


async def test_the_device_of_an_engine_that_was_down_at_startup_is_found_out_later(tmp_path: Path) -> None:
    engine = WeightEngine(root=write_tied_checkpoint(tmp_path / "base"), device="cpu")
    engine.dead = True
    async with trainer_server(engine, weights_check="values") as policy:
        engine.dead = False
        assert (await policy.post(*SEEDED[0]))[0] == 400
        assert (await policy.update(write_tied_checkpoint(tmp_path / "new", seed=1)))[0] == 400
        assert engine.weights == str(tmp_path / "base")


class TokensOnCpu(TokenEngine):
    """A token engine that reports a CPU."""

    def _answers(self, path: str) -> Callable[[Json], Json]:
        known: dict[str, Json] = {"/server_info": {"vllm_config": {"device_config": {"device": "cpu"}}}}
        return (lambda body: known[path]) if path in known else super()._answers(path)


async def test_the_servers_own_requests_have_no_seed_where_weights_may_be_updated_on_a_cpu() -> None:
    engine = TokensOnCpu([TEXT_TURN])
    async with trainer_server(engine, return_token_id_information=True) as policy:
        assert (await policy.post("/token_check", {"samples": 3}))[0] == 200
        assert (await policy.post("/v1/chat/completions", {"messages": [user_message("<|im_end|>")]}))[0] == 200
    bodies = [body for _, body in engine.requests]
    assert len(bodies) > 20
    assert [body for body in bodies if body.get("seed") is not None] == []
