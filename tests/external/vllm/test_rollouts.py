"""Rollouts from a real engine with the specified command lines: the data that a trainer reads is correct."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from omegaconf import OmegaConf

import rollyard
from rollyard.analysis.viewer.token_texts import load_tokenizer
from rollyard.records.activity import LOAD_PATH, ModelLoad
from rollyard.records.data_files import INSTALLED
from rollyard.records.rollout_file import read_status
from rollyard.records.types import Json
from rollyard.services.config.run_config import RunConfig
from rollyard.services.rollouts.concurrency import START
from tests.external.vllm.calls import CALL
from tests.external.vllm.engine import RUNNING, SLOTS, WAITING, Engine
from tests.support.commands import command, config, ng_run
from tests.support.stacks import AGENT, EXAMPLES, PUZZLES, collect, colocated, keys_of, load_config, read_rows
from tests.support.waiting import deadline_s, eventually

if TYPE_CHECKING:  # imports torch, which the smoke test does not need
    from tests.external.vllm.reference import Reference

MODEL = "responses_api_models/vllm_model/configs/vllm_model.yaml"
ENVIRONMENT = "resources_servers/grl_sokoban/configs/grl_sokoban.yaml"
TASKS, REPEATS = 6, 4
CLOSE = 1e-4
ENDLESS: Json = {"extra_body": {"ignore_eos": True, "min_tokens": 3000}}


def policy(engine: Engine) -> dict[str, str]:
    return {"policy_base_url": f"{engine.url}/v1", "policy_api_key": "dummy", "policy_model_name": "tiny"}


def constrained(**settings: Any) -> Json:
    chosen = {
        "return_token_id_information": True,
        "strict_tools": False,  # the grammar of a strict tool would replace the regex
        "extra_body": {"structured_outputs": {"regex": CALL}},
        **settings,
    }
    return {"policy_model": {"responses_api_models": {"vllm_model": chosen}}}


def config_tree(engine: Engine, **settings: Any) -> Any:
    parts = [OmegaConf.load(INSTALLED / path) for path in (MODEL, ENVIRONMENT)]
    return OmegaConf.to_container(OmegaConf.merge(*parts, constrained(**settings), policy(engine)))


def run_config(engine: Engine, folder: Path, **settings: Any) -> RunConfig:
    return load_config(config=config_tree(engine, **settings), tmp_path=folder)


@pytest.fixture(scope="module")
def rows(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> list[Json]:
    folder = tmp_path_factory.mktemp("run")
    settings = constrained(return_token_texts=True)
    (folder / "env.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(settings)))
    return asyncio.run(_collected(folder, policy(engine)))


async def _collected(folder: Path, exported: dict[str, str]) -> list[Json]:
    async with ng_run(config(MODEL, ENVIRONMENT), "+head_port=0", cwd=folder, env=exported):
        done = await command(
            "ng_collect_rollouts",
            f"+agent_name={AGENT}",
            f"+input_jsonl_fpath={PUZZLES}",
            "+output_jsonl_fpath=rollouts.jsonl",
            f"+limit={TASKS}",
            f"+num_repeats={REPEATS}",
            "+num_samples_in_parallel=32",
            "+responses_create_params.temperature=0.8",
            "+responses_create_params.max_output_tokens=4096",
            cwd=folder,
            deadline_s=deadline_s(),
        )
    assert done.status == 0, done.err
    assert f"collected: {TASKS * REPEATS} of {TASKS * REPEATS} rollouts measured" in done.out
    return read_rows(folder / "rollouts.jsonl")


def turns_of(row: Json) -> list[Json]:
    return [item for item in row["response"]["output"] if "generation_token_ids" in item]


@pytest.mark.smoke
async def test_a_rollout_of_an_engine_has_its_recorded_tokens(engine: Engine, tmp_path: Path) -> None:
    async with colocated(run_config(engine, tmp_path), tmp_path) as stack:
        answer = await stack.client.post(AGENT, "/run", EXAMPLES.read_bytes().split(b"\n")[0], deadline_s())
    row = orjson.loads(answer.body)
    assert row["finish_reason"] != "failed" and len(turns_of(row)) == row["timings"]["model_calls"] > 1


def test_recorded_texts_are_those_of_the_engines_tokenizer(rows: list[Json], tiny_model: Path) -> None:
    decoder = load_tokenizer(str(tiny_model), print)
    for item in itertools.chain.from_iterable(map(turns_of, rows)):
        ids, texts = item["generation_token_ids"], item["token_trace"]["texts"]
        assert len(texts) == len(ids)
        # The engine writes a part of a character as U+FFFD; decoded together, the parts are the character.
        assert [text for text in texts if "\ufffd" not in text] == [
            decoder.texts([token])[0] for token, text in zip(ids, texts, strict=True) if "\ufffd" not in text
        ]
        if not any("\ufffd" in text for text in texts):
            assert decoder.texts(ids) == texts


def test_every_rollout_is_measured_and_every_model_call_has_its_tokens(rows: list[Json]) -> None:
    assert keys_of(rows) == [(task, repeat) for task in range(TASKS) for repeat in range(REPEATS)]
    assert max(len(turns_of(row)) for row in rows) == 10
    for row in rows:
        assert len(turns_of(row)) == row["timings"]["model_calls"]
        for item in turns_of(row):
            assert item["prompt_token_ids"]
            assert len(item["generation_token_ids"]) == len(item["generation_log_probs"]) > 0


def test_every_prompt_starts_with_exactly_the_previous_turn(rows: list[Json]) -> None:
    for row in rows:
        turns = turns_of(row)
        trail = {"turns": len(turns) - 1, "breaks": 0, "segments": 1, "constrained": ["structured_outputs"]}
        assert row["token_trail"] == trail
        for before, turn in itertools.pairwise(turns):
            seen = before["prompt_token_ids"] + before["generation_token_ids"]
            assert turn["prompt_token_ids"][: len(seen)] == seen


def test_between_two_turns_there_is_only_the_tool_output(rows: list[Json], engine: Engine) -> None:
    row = max(rows, key=lambda row: len(turns_of(row)))
    answers = [item["output"] for item in row["response"]["output"] if item["type"] == "function_call_output"]
    turns = turns_of(row)
    for before, turn, answer in zip(turns, turns[1:], answers, strict=False):
        seen = len(before["prompt_token_ids"]) + len(before["generation_token_ids"])
        last = engine.post("/detokenize", {"model": "tiny", "tokens": before["generation_token_ids"][-1:]})["prompt"]
        between = engine.post("/detokenize", {"model": "tiny", "tokens": turn["prompt_token_ids"][seen:]})["prompt"]
        # Random weights may also end with the other end token; the template then adds its own.
        ended = "" if last == "<|im_end|>" else "<|im_end|>"
        tool_output = f"<|im_start|>user\n<tool_response>\n{answer}\n</tool_response><|im_end|>\n"
        assert between == f"{ended}\n{tool_output}<|im_start|>assistant\n"


def test_logprobs_equal_a_forward_pass_over_the_recorded_ids(rows: list[Json], reference: Reference) -> None:
    for row in rows:
        last = turns_of(row)[-1]  # with one segment, the ids of the last turn contain all earlier turns
        logits = reference.logits(last["prompt_token_ids"] + last["generation_token_ids"])
        for item in turns_of(row):
            start, generated = len(item["prompt_token_ids"]), item["generation_token_ids"]
            expected = reference.chosen(logits, start, generated, CALL, 0.8)
            assert item["generation_log_probs"] == pytest.approx(expected, abs=CLOSE)


async def test_turns_sent_as_messages_drift_and_each_break_is_recorded(engine: Engine, tmp_path: Path) -> None:
    chosen = run_config(engine, tmp_path, token_in="off")
    async with colocated(chosen, tmp_path) as stack:
        state, progress = await collect(stack, tmp_path / "rollouts.jsonl", rows=EXAMPLES, repeats=2)
    assert state == "complete"
    assert progress.token_breaks > 0.5 * progress.token_turns > 0
    for row in read_rows(tmp_path / "rollouts.jsonl"):
        segment = 0
        for before, turn in itertools.pairwise(turns_of(row)):
            seen = before["prompt_token_ids"] + before["generation_token_ids"]
            broken = turn["token_trace"].get("break")
            assert (broken is None) == (turn["prompt_token_ids"][: len(seen)] == seen)
            if broken is not None:
                segment += 1
                at = broken["position"]
                assert turn["prompt_token_ids"][:at] == seen[:at]
                assert turn["prompt_token_ids"][at] != seen[at]
            assert turn["token_trace"]["segment"] == segment


async def test_the_load_of_the_engine_is_that_of_its_model_server(engine: Engine, tmp_path: Path) -> None:
    chosen, count = run_config(engine, tmp_path, **ENDLESS), SLOTS + 8
    row = EXAMPLES.read_bytes().split(b"\n")[0]
    async with colocated(chosen, tmp_path) as stack:
        [url] = (await stack.client.book.current()).servers["policy_model"]

        async def load() -> ModelLoad:
            return ModelLoad.model_validate_json((await stack.client.get_from(url, LOAD_PATH, deadline_s())).body)

        before = (await load()).engine
        assert before is not None and (before.running, before.waiting) == (0, 0)
        rollouts = [asyncio.create_task(stack.client.post(AGENT, "/run", row, deadline_s())) for _ in range(count)]
        async with asyncio.timeout(deadline_s()):
            while (busy := (await load()).engine) is None or not (busy.running and busy.waiting):
                assert not any(rollout.done() for rollout in rollouts), "a rollout has ended early"
        assert busy.running <= SLOTS and busy.kv_cache_usage > 0 and busy.preemptions >= before.preemptions
        for rollout in rollouts:
            rollout.cancel()
        await asyncio.gather(*rollouts, return_exceptions=True)
        await asyncio.to_thread(eventually, "aborted", lambda: engine.gauge(RUNNING) + engine.gauge(WAITING) == 0)


async def test_automatic_concurrency_grows_and_measures_every_rollout(engine: Engine, tmp_path: Path) -> None:
    rows = [orjson.loads(line) for line in EXAMPLES.read_bytes().splitlines()]
    out, repeats, found = tmp_path / "rollouts.jsonl", 20, 0
    async with rollyard.stack(config_tree(engine), colocate=True, folder=tmp_path) as stack:
        call = rollyard.collect(stack, rows, out, num_repeats=repeats, num_samples_in_parallel="auto")
        collection = asyncio.create_task(call)
        while not collection.done():
            await asyncio.wait([collection], timeout=0.1)
            status = read_status(out)
            found = max(found, (status and status.concurrency) or 0)
        assert (await collection).state == "complete"
    assert found > START
    assert keys_of(read_rows(out)) == [(task, repeat) for task in range(len(rows)) for repeat in range(repeats)]


async def test_cancelled_rollouts_leave_no_request_in_the_engine(engine: Engine, tmp_path: Path) -> None:
    chosen = run_config(engine, tmp_path, **ENDLESS)
    row = EXAMPLES.read_bytes().split(b"\n")[0]
    async with colocated(chosen, tmp_path) as stack:
        rollouts = [asyncio.create_task(stack.client.post(AGENT, "/run", row, deadline_s())) for _ in range(4)]
        running = "4 requests run, or a rollout has ended early"
        await asyncio.to_thread(
            eventually, running, lambda: engine.gauge(RUNNING) >= 4 or any(rollout.done() for rollout in rollouts)
        )
        assert [rollout.result() for rollout in rollouts if rollout.done()] == []
        for rollout in rollouts:
            rollout.cancel()
        await asyncio.gather(*rollouts, return_exceptions=True)
        await asyncio.to_thread(eventually, "aborted", lambda: engine.gauge(RUNNING) == 0)
