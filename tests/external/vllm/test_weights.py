"""Weight updates of a real engine through the model server: it then samples exactly from the new model."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from safetensors.torch import load_file, save_file

from tests.external.vllm.calls import CALL, asking
from tests.external.vllm.engine import Engine, in_flight
from tests.external.vllm.reference import Reference
from tests.external.vllm.test_rollouts import run_config, turns_of
from tests.support.stacks import collect, colocated, read_rows
from tests.support.waiting import deadline_s
from tests.support.weight_engine import TrainerClient, trainer_server

CLOSE = 1e-4
"""Tolerance for float32 sums in another order; the largest observed difference is 1e-5."""
GENERATE = "/inference/v1/generate"
LONG = 3000
"""Tokens of a response that lasts for some seconds."""
PROMPT = [5, 6, 7, 8, 9, 10] * 60


@pytest.fixture(autouse=True)
def unchanged(engine: Engine, tiny_model: Path) -> Iterator[None]:
    """After each test, the engine has its original weights again, with vLLM's default version name."""
    yield
    engine.reload(tiny_model)
    engine.post("/update_weight_version", {"new_version": "default"})


@contextlib.asynccontextmanager
async def policy(engine: Engine, **settings: Any) -> AsyncIterator[TrainerClient]:
    async with trainer_server(
        base_url=[f"{engine.url}/v1"], **{"weights_check": "values", **settings}
    ) as policy_server:
        yield policy_server


async def sampled(policy_server: TrainerClient, **params: Any) -> tuple[list[int], list[float], Any]:
    sampling = {"temperature": 1.0, "max_tokens": 16, "logprobs": 0, "ignore_eos": True, **params}
    status, answer = await policy_server.post(GENERATE, {"token_ids": PROMPT, "sampling_params": sampling})
    assert status == 200, answer
    (choice,) = answer["choices"]
    return choice["token_ids"], [part["logprob"] for part in choice["logprobs"]["content"]], choice["weight_versions"]


async def test_after_every_update_the_logprobs_are_those_of_the_new_model(
    engine: Engine, tiny_model: Path, other_model: Path, reference: Reference, other_reference: Reference
) -> None:
    async with policy(engine) as policy_server:
        updates = ((other_model, other_reference), (tiny_model, reference), (other_model, other_reference))
        for number, (folder, model) in enumerate(updates, 1):
            status, answer = await policy_server.update(str(folder))
            assert (status, answer["version"], answer["engines"], answer["warnings"]) == (200, str(number), 1, [])
            output, logprobs, versions = await sampled(policy_server)
            assert model.logprobs(PROMPT, output) == pytest.approx(logprobs, abs=CLOSE)
            assert versions == [{"version": str(number), "start": 0, "end": 16}]


async def test_rollouts_continue_during_updates_and_the_version_of_each_token_is_recorded(
    engine: Engine,
    tiny_model: Path,
    other_model: Path,
    reference: Reference,
    other_reference: Reference,
    tmp_path: Path,
) -> None:
    folders = {"0": tiny_model}
    # Without seeds, because vLLM 0.32 on CPU crashes if a seeded request is recomputed in several pieces.
    config = run_config(engine, tmp_path, trainer_endpoints=True, sampling_overrides={"seed": None})
    async with colocated(config, tmp_path, token="the run's token") as stack:
        collecting = asyncio.create_task(collect(stack, tmp_path / "rollouts.jsonl"))
        while not collecting.done():
            version = f"step-{len(folders)}"
            folders[version] = (tiny_model, other_model)[len(folders) % 2]
            body = {"path": str(folders[version]), "version": version}
            await stack.client.post("policy_model", "/weights/update", orjson.dumps(body), deadline_s())
            await asyncio.sleep(0.2)  # turns are played between two updates
        state, progress = await collecting
    assert (state, progress.failed_attempts) == ("complete", 0)
    references = {tiny_model: reference, other_model: other_reference}
    seen: set[str] = set()
    for turn in (item for row in read_rows(tmp_path / "rollouts.jsonl") for item in turns_of(row)):
        sampling, ids = turn["token_trace"]["sampling"], turn["generation_token_ids"]
        spans = [{"version": sampling["policy_version"], "start": 0, "end": len(ids)}]
        if "policy_version_end" in sampling:
            spans = sampling["weight_versions"]  # also recorded for first turns
        for span in spans:
            seen.add(span["version"])
            model, within = references[folders[span["version"]]], slice(span["start"], span["end"])
            expected = model.logprobs(turn["prompt_token_ids"], ids, CALL, 0.8)
            assert turn["generation_log_probs"][within] == pytest.approx(expected[within], abs=CLOSE)
    assert len(seen) > 1


async def test_a_failed_load_aborts_requests_in_flight_but_not_the_engine(engine: Engine) -> None:
    async with policy(engine, max_attempts=1, weights_check="off") as policy_server:
        request = {"token_ids": PROMPT, "sampling_params": {"max_tokens": LONG, "ignore_eos": True}}

        calling = await in_flight(engine, policy_server.post(GENERATE, request))
        status, answer = await policy_server.update("/no/such/folder")
        assert (status, f"{engine.url}/v1" in answer["detail"]) == (502, True)
        assert (await calling)[0] == 503
        assert (await policy_server.call_model())[0] == 503
        assert engine.client.get("/health").status_code == 200


INVALID = ("not there", "no head", "NaN", "cut short", "another shape", "no weights")


def invalid_copy(checkpoint: Path, folder: Path, defect: str) -> Path:
    if defect == "not there":
        return folder / "nowhere"
    shutil.copytree(checkpoint, folder / defect)
    file = folder / defect / "model.safetensors"
    tensors = load_file(file)
    if defect == "no head":
        del tensors["lm_head.weight"]
    elif defect == "NaN":
        tensors["model.norm.weight"][-1] = float("nan")
    elif defect == "another shape":
        tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1].contiguous()
    save_file(tensors, file, {"format": "pt"})
    if defect == "cut short":
        file.write_bytes(file.read_bytes()[:-1])
    elif defect == "no weights":
        file.unlink()
    return folder / defect


async def test_after_a_rejected_update_the_responses_are_bitwise_the_same(
    engine: Engine, other_model: Path, tmp_path: Path
) -> None:
    async with policy(engine) as policy_server:
        before = await sampled(policy_server, temperature=0.0)
        for defect in INVALID:
            status, answer = await policy_server.update(str(invalid_copy(other_model, tmp_path, defect)))
            assert (status, "\n" in answer["detail"], await policy_server.version()) == (400, False, "0"), answer
            assert await sampled(policy_server, temperature=0.0) == before, defect


async def test_token_endpoints_are_forwarded_unchanged(engine: Engine) -> None:
    async with policy(engine) as policy_server:
        for path, body in (
            ("/tokenize", {"prompt": "Solve this", "return_token_strs": True}),
            ("/detokenize", {"tokens": [5, 6, 7]}),
            ("/v1/chat/completions/render", asking()),
        ):
            status, answer = await policy_server.post(path, {**body, "model": "another"})
            direct = engine.post(path, {**body, "model": "tiny"})
            assert (status, answer.keys()) == (200, direct.keys())
            kept = {"tokens", "prompt", "token_ids"} & answer.keys()
            assert {key: answer[key] for key in kept} == {key: direct[key] for key in kept}
        prompt = {"prompt": [5, 6, 7], "max_tokens": 4, "stream": True}
        answer, _ = await policy_server.send("POST", "/v1/completions", prompt)
        assert answer.body.endswith(b"data: [DONE]\n\n")
