"""Signals to the collector: Ctrl-C once drains, twice cancels, SIGTERM cancels; a message tells how to resume."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rollyard.services.runtime.stack import Stack
from tests.faults.forked import Forked
from tests.support.stacks import PUZZLES, load_config
from tests.support.waiting import until

from .harness import (
    ENVIRONMENT,
    POLICY,
    collect_arguments,
    essences,
    falls_to_zero,
    forked,
    forked_collect,
    gauge,
    status,
)

BUILTIN = "policy_model.responses_api_models.builtin_model"
SLOW = f"{BUILTIN}.latency_s=0.05"
HANGING = f"+{BUILTIN}.faults.hang_rate=1.0"
ROLLOUTS = 120


def start(stack: Stack, folder: Path) -> Forked:
    options = {"limit": ROLLOUTS, "num_repeats": 1, "num_samples_in_parallel": 8}
    arguments = collect_arguments(stack, PUZZLES, folder / "rollouts.jsonl", **options)
    return forked_collect(arguments, folder / "collect.log")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
async def test_an_interrupted_collection_explains_how_to_resume_and_resumes(
    number: signal.Signals, tmp_path: Path
) -> None:
    output, log = tmp_path / "rollouts.jsonl", tmp_path / "collect.log"
    async with forked(load_config(SLOW), tmp_path) as stack:
        collector = start(stack, tmp_path)
        await until(lambda: output.exists() and output.stat().st_size > 0, "the first rollout is written")
        in_flight_before = len(essences(output))
        collector.signal(number)
        assert await collector.wait() == 130
        measured_before, output_text = essences(output), log.read_text()
        assert f"interrupted: {len(measured_before)} of {ROLLOUTS} rollouts measured" in output_text
        assert f"{ROLLOUTS - len(measured_before)} missing rollouts" in output_text
        assert status(output)["state"] == "interrupted"
        assert "Traceback" not in output_text
        if number is signal.SIGINT:
            assert "Ctrl-C again abandons them" in output_text
            assert len(measured_before) > in_flight_before, "episodes in flight are finished"
        await falls_to_zero(stack, ENVIRONMENT, "rollyard_sessions")
        assert await start(stack, tmp_path).wait() == 0, log.read_text()
    whole = essences(output)
    assert len(whole) == ROLLOUTS
    assert measured_before.items() <= whole.items()


async def test_ctrl_c_twice_abandons_episodes_that_hang(tmp_path: Path) -> None:
    log = tmp_path / "collect.log"
    async with forked(load_config(HANGING), tmp_path) as stack:
        collector = start(stack, tmp_path)
        while await gauge(stack, POLICY, "rollyard_in_flight") < 8:
            assert not await collector.ended_within(0.02), log.read_text()
        collector.signal(signal.SIGINT)
        await until(lambda: "Ctrl-C again" in log.read_text(), "the first SIGINT is handled")
        assert not await collector.ended_within(0.3), "it must wait for its episodes"
        collector.signal(signal.SIGINT)
        assert await collector.wait() == 130
        await falls_to_zero(stack, POLICY, "rollyard_in_flight")
        await falls_to_zero(stack, ENVIRONMENT, "rollyard_sessions")
