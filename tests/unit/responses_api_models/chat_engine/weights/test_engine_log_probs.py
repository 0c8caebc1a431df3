"""Every engine's log-probabilities of given tokens, under one version."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from tests.support.waiting import until
from tests.support.weight_engine import STARTED, WeightEngine, engine_url, log_prob, trainer_server

PATH = "/weights/log_probs"


async def test_every_engine_is_asked_and_the_version_is_that_of_its_weights() -> None:
    engines = WeightEngine(), WeightEngine()
    engines[1].offset = 0.5
    async with trainer_server(*engines) as policy:
        await policy.update("/weights/new", version="v1")
        status, answer = await policy.post(PATH, {"sequences": [[4, 5, 6], [7, 8]]})
    assert (status, answer["version"]) == (200, "v1")
    for number, one in enumerate(answer["engines"]):
        assert one["url"] == engine_url(number)
        for row, ids in zip(one["sequences"], ([4, 5, 6], [7, 8]), strict=True):
            expected = [log_prob("/weights/new", token) + number * 0.5 for token in ids[1:]]
            assert (row["ids"], row["log_probs"]) == (ids, expected)


async def test_an_engine_with_lora_samples_tokens_instead() -> None:
    engine = WeightEngine()
    info = {"vllm_config": {"device_config": {"device": "cpu"}, "lora_config": {"max_lora_rank": 16}}}
    engine.answers["/server_info"] = (200, orjson.dumps(info))
    choice = {"token_ids": [8, 9], "logprobs": {"token_logprobs": [-1.5, -2.5]}}
    engine.answers["/v1/completions"] = (200, orjson.dumps({"choices": [choice]}))
    async with trainer_server(engine) as policy:
        _, answer = await policy.post(PATH, {"sequences": [[4, 5, 6, 7]]})
    assert answer["engines"][0]["sequences"] == [{"ids": [4, 5, 8, 9], "log_probs": [-1.5, -2.5]}]
    (asked,) = [body for path, body in engine.calls if path == "/v1/completions"]
    assert "prompt_logprobs" not in asked and asked["prompt"] == [4, 5]


async def test_an_engine_that_does_not_respond_leaves_the_pool_and_the_other_answers() -> None:
    good, dead = WeightEngine(), WeightEngine()
    async with trainer_server(good, dead) as policy:
        dead.dead = True
        status, answer = await policy.post(PATH, {"sequences": [[4, 5]]})
        assert (status, [one["url"] for one in answer["engines"]]) == (200, [engine_url(0)])
        assert (await policy.get("/weights"))[1]["lost"] == [engine_url(1)]


async def test_the_only_engine_must_respond() -> None:
    engine = WeightEngine()
    async with trainer_server(engine) as policy:
        engine.dead = True
        assert (await policy.post(PATH, {"sequences": [[4, 5]]}))[0] in (502, 503)


async def test_log_probabilities_are_not_read_while_weights_change() -> None:
    engine = WeightEngine()
    engine.delayed["/collective_rpc"] = asyncio.Event()
    async with trainer_server(engine) as policy:
        updating = asyncio.create_task(policy.update("/weights/new", version="v1"))
        await until(lambda: "/collective_rpc" in engine.paths)
        reading = asyncio.create_task(policy.post(PATH, {"sequences": [[4, 5]]}))
        await asyncio.sleep(0.02)
        assert not reading.done() and "/v1/completions" not in engine.paths
        engine.delayed["/collective_rpc"].set()
        assert (await updating)[0] == 200
        assert (await reading)[1]["version"] == "v1"


async def test_weights_that_change_during_the_request_are_a_failure() -> None:
    engine = WeightEngine()
    engine.delayed["/v1/completions"] = asyncio.Event()
    async with trainer_server(engine) as policy:
        reading = asyncio.create_task(policy.post(PATH, {"sequences": [[4, 5]]}))
        await until(lambda: "/v1/completions" in engine.paths)
        await policy.update("/weights/new", version="v1")
        engine.delayed.pop("/v1/completions").set()
        status, answer = await reading
        assert (status, "weights changed" in answer["detail"]) == (503, True)


async def test_what_is_not_a_list_of_sequences_is_refused() -> None:
    invalid: list[Any] = [None, [], [[]], [[1]], [["a", "b"]], [[1, -2]], [[True, 1]], [[1] * 70_000]]
    async with trainer_server(WeightEngine()) as policy:
        for sequences in invalid:
            status, answer = await policy.post(PATH, {"sequences": sequences})
            assert (status, "sequences: " in answer["detail"]) == (400, True), str(sequences)[:40]


async def test_a_refusal_by_the_engine_is_a_bad_request() -> None:
    engine = WeightEngine()
    engine.answers["/v1/completions"] = (400, b'{"error": {"message": "Token id 99999 is out of vocabulary"}}')
    async with trainer_server(engine) as policy:
        status, answer = await policy.post(PATH, {"sequences": [[4, 99999]]})
        assert (status, "out of vocabulary" in answer["detail"]) == (400, True)


async def test_the_status_says_whether_an_engine_runs_on_a_cpu() -> None:
    for device, expected in [("cpu", True), ("cuda", False)]:
        async with trainer_server(WeightEngine(root=STARTED, device=device)) as policy:
            assert (await policy.get("/weights"))[1]["on_cpu"] is expected
