"""ng_capacity: the formulas, and the costs that benchmarks.scale solves for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from benchmarks.scale import KINDS, Effort, Found, Play, Point, fitted
from rollyard.cli.capacity import Hosts, Load, capacity, run
from rollyard.records.errors import OperatorError
from rollyard.services.config.replicas import MEASURED, Costs, Measured, read_costs

AGENT = Costs(
    episode_ms=1.0, turn_ms=0.2, wake_ms=0.1, kb_ms=0.01, base_mb=60.0, episode_kb=30.0, copies=3.0, files=3.0
)
MODEL = Costs(
    episode_ms=0.5, turn_ms=0.3, wake_ms=0.15, kb_ms=0.02, base_mb=70.0, episode_kb=10.0, copies=4.0, files=2.0
)
ENVIRONMENT = Costs(
    episode_ms=0.8, turn_ms=0.1, wake_ms=0.05, kb_ms=0.001, base_mb=50.0, episode_kb=10.0, copies=1.0, files=1.0
)
COLLECTOR = Costs(
    episode_ms=0.3, turn_ms=0.01, wake_ms=0.01, kb_ms=0.002, base_mb=65.0, episode_kb=9.0, copies=1.0, files=1.0
)
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
    hosts = Hosts(utilization=0.5)
    cheap = capacity(LOAD, hosts, COSTS).needs
    costly = capacity(LOAD.model_copy(update={"environment_ms": 10.0}), hosts, COSTS).needs
    turns_per_s = 10_000 / 2.01
    assert costly["environment"].processes >= turns_per_s * 0.010 / 0.5
    assert costly["agent"].cores == pytest.approx(cheap["agent"].cores, rel=0.01)


def test_a_low_limit_of_open_files_asks_for_more_processes() -> None:
    needs = capacity(LOAD, Hosts(open_files=4096), COSTS).needs
    assert needs["agent"].processes == 8
    assert all(need.open_files <= 4096 for need in needs.values())


def test_a_busy_process_uses_less_cpu_per_turn_than_one_that_wakes_up_for_each() -> None:
    few, many = (capacity(LOAD, Hosts(replicas=replicas), COSTS) for replicas in (1, 32))
    assert many.cores > few.cores
    need = many.needs["agent"]
    expected = many.episodes_per_s * AGENT.cpu_ms(LOAD.turns, LOAD.sent_kb, many.turns_per_s / 32) / 1000
    assert need.processes == 32 and need.cores == pytest.approx(expected)


@pytest.mark.parametrize("utilization", [0.2, 0.5, 0.9])
def test_no_process_is_used_more_than_is_allowed(utilization: float) -> None:
    needs = capacity(LOAD, Hosts(utilization=utilization), COSTS).needs.values()
    assert all(need.cores <= utilization * need.processes for need in needs)


def point(play: Play) -> Point:
    """What a host with the costs COSTS would measure."""
    load = LOAD.model_copy(
        update={
            "turns": play.turns,
            "model_latency_s": play.latency_s,
            "prompt_bytes": 1000.0 * play.kb,
            "turn_bytes": 500.0,
            "in_flight": play.parallel,
        }
    )
    found = capacity(load, Hosts(replicas=play.replicas), COSTS)
    ms, memory_mb, files = {}, {}, {}
    for kind, need in zip(KINDS, found.needs.values(), strict=True):
        ms[kind] = 1000 * need.cores / found.turns_per_s
        memory_mb[kind] = need.memory_mb
        files[kind] = need.open_files - 70
    sizes = (load.prompt_bytes, load.turn_bytes)
    return Point(play, found.turns_per_s, ms, memory_mb, files, ("agent", 0.5), 0.5, 0.0, (1, 2), 0, 0, 0, *sizes)


def test_the_costs_of_points_that_follow_the_formulas_are_those_of_the_formulas() -> None:
    in_flight = [point(Play(parallel, 1.0)) for parallel in (64, 256, 512)]
    # Only with few episodes do these costs need no more processes than the points have.
    plays = [replace(play, parallel=play.parallel // 4) for play in Effort().costs]
    found = Found([], in_flight, [[point(play) for play in plays]], [])
    for name, costs in COSTS.kinds().items():
        solved = found.costs().kinds()[name].model_dump()
        assert solved == pytest.approx(costs.model_dump(), rel=0.02, abs=0.1), name


def test_where_the_best_fit_has_a_negative_cost_the_others_fit_without_it() -> None:
    rows = [[2.0, 1.0], [1.6, 0.3]]
    assert fitted([row[:1] for row in rows]) == pytest.approx([3.6 / 6.56])
    assert fitted(rows) == pytest.approx([3.6 / 6.56, 0.0])  # unconstrained: 0.7 and -0.4


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


def test_a_file_of_an_older_version_is_read(tmp_path: Path) -> None:
    older = COSTS.model_dump()
    for kind in KINDS:
        del older[kind]["wake_ms"]
    path = tmp_path / "costs.json"
    path.write_bytes(orjson.dumps(older))
    assert read_costs(path).agent.turn_ms == AGENT.turn_ms


def test_the_costs_of_the_distribution_are_valid() -> None:
    assert read_costs(MEASURED).measured
