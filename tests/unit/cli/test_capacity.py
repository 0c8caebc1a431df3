"""ng_capacity: the formulas, and the costs that benchmarks.scale solves for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from benchmarks.scale import KINDS, Found, Play, Point
from rollyard.cli.capacity import Hosts, Load, capacity, run
from rollyard.records.errors import OperatorError
from rollyard.services.config.costs import MEASURED, Costs, Measured, read_costs

AGENT = Costs(episode_ms=1.0, turn_ms=0.2, kb_ms=0.01, base_mb=60.0, episode_kb=30.0, copies=3.0, files=3.0)
MODEL = Costs(episode_ms=0.5, turn_ms=0.3, kb_ms=0.02, base_mb=70.0, episode_kb=10.0, copies=4.0, files=2.0)
ENVIRONMENT = Costs(episode_ms=0.8, turn_ms=0.1, kb_ms=0.001, base_mb=50.0, episode_kb=10.0, copies=1.0, files=1.0)
COLLECTOR = Costs(episode_ms=0.3, turn_ms=0.01, kb_ms=0.002, base_mb=65.0, episode_kb=9.0, copies=1.0, files=1.0)
COSTS = Measured(measured="nowhere", agent=AGENT, model=MODEL, environment=ENVIRONMENT, collector=COLLECTOR)
LOAD = Load(
    turns=20,
    model_latency_s=2.0,
    environment_ms=0.0,
    prompt_bytes=4000,
    turn_bytes=1000,
    in_flight=10_000,
    episodes_per_s=None,
)


def test_episodes_per_second_and_episodes_in_flight_follow_from_each_other() -> None:
    found = capacity(LOAD, Hosts(), COSTS)
    by_rate = LOAD.model_copy(update={"in_flight": None, "episodes_per_s": found.episodes_per_s})
    assert capacity(by_rate, Hosts(), COSTS).in_flight == pytest.approx(10_000)


def test_each_call_sends_the_prompt_and_all_earlier_turns() -> None:
    sent = sum(LOAD.prompt_bytes + call * LOAD.turn_bytes for call in range(LOAD.turns))
    assert LOAD.sent_kb == pytest.approx(sent / 1000)


def test_an_environment_gets_processes_for_its_own_cpu_and_the_other_kinds_do_not() -> None:
    cheap = capacity(LOAD, Hosts(), COSTS).needs
    costly = capacity(LOAD.model_copy(update={"environment_ms": 10.0}), Hosts(utilization=0.5), COSTS).needs
    turns_per_s = 10_000 / 2.01
    assert costly["environment"].processes >= turns_per_s * 0.010 / 0.5
    assert costly["agent"].cores == pytest.approx(cheap["agent"].cores, rel=0.01)


def test_a_low_limit_of_open_files_asks_for_more_processes() -> None:
    needs = capacity(LOAD, Hosts(open_files=4096), COSTS).needs
    assert needs["agent"].processes == 8
    assert all(need.open_files <= 4096 for need in needs.values())


def point(play: Play, *, prompt_bytes: float, turn_bytes: float = 500.0) -> Point:
    """What a host with the costs COSTS would measure."""
    load = LOAD.model_copy(update={"turns": play.turns, "prompt_bytes": prompt_bytes, "turn_bytes": turn_bytes})
    conversation_kb = load.conversation_kb
    ms, memory_mb, files = {}, {}, {}
    for name, costs in zip(KINDS, COSTS.kinds().values(), strict=True):
        per_episode = costs.episode_ms + play.turns * costs.turn_ms + load.sent_kb * costs.kb_ms
        ms[name] = per_episode / play.turns
        processes = 1 if name == "collector" else play.replicas
        episodes_mb = play.parallel * (costs.episode_kb + conversation_kb * costs.copies) / 1000
        memory_mb[name] = processes * costs.base_mb + episodes_mb
        files[name] = round(20 + play.parallel / processes * costs.files)
    return Point(
        play, 1000.0, ms, memory_mb, files, ("agent", 0.5), 0.5, 0.0, (1, 2), 0, 0, 0, prompt_bytes, turn_bytes
    )


def test_the_costs_of_points_that_follow_the_formulas_are_those_of_the_formulas() -> None:
    play = Play(1024, 1.0, replicas=1)
    short, long, large = (
        point(play, prompt_bytes=1000),
        point(replace(play, turns=24), prompt_bytes=1000),
        point(replace(play, kb=32), prompt_bytes=32_000),
    )
    in_flight = [point(Play(parallel, 1.0), prompt_bytes=1000) for parallel in (64, 512, 4096)]
    found = Found([], in_flight, short, long, large, [])
    for name, costs in COSTS.kinds().items():
        solved = found.costs().kinds()[name].model_dump()
        assert solved == pytest.approx(costs.model_dump(), rel=0.02, abs=0.1), name


@pytest.mark.parametrize("given", [[], ["--in-flight", "10", "--episodes-per-s", "2"]], ids=["neither", "both"])
def test_exactly_one_of_episodes_in_flight_and_episodes_per_second_is_expected(given: list[str]) -> None:
    with pytest.raises(OperatorError, match="exactly one of --in-flight, --episodes-per-s"):
        run([*given, "--model-latency-s", "1", "--turns", "2"])


@pytest.mark.parametrize("given", [["--turns", "2" + 400 * "0"], ["--turns", "2", "--environment-ms", "inf"]])
def test_numbers_without_a_result_are_refused(given: list[str]) -> None:
    with pytest.raises(OperatorError, match=r"too large|finite"):
        run(["--in-flight", "10", "--model-latency-s", "1", *given])


def test_costs_of_the_users_own_hosts_are_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "costs.json"
    path.write_bytes(orjson.dumps(COSTS.model_dump()))
    run(["--in-flight", "100", "--model-latency-s", "1", "--turns", "2", "--costs", str(path), "--json"])
    assert orjson.loads(capsys.readouterr().out)["measured"] == "nowhere"


def test_a_file_that_holds_no_costs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text('{"measured": "nowhere"}')
    with pytest.raises(OperatorError, match=r"costs.json does not hold costs .*Field required \(agent\)"):
        read_costs(path)


def test_the_costs_of_the_distribution_are_valid() -> None:
    assert read_costs(MEASURED).measured
