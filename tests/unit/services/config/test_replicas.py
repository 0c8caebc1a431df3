"""`replicas: auto`: how many processes it stands for."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from rollyard.services.config.replicas import usable_cores, with_replicas
from tests.support.stacks import load_config

AUTO = [
    f"{path}.replicas=auto"
    for path in (
        "policy_model.responses_api_models.builtin_model",
        "grl_sokoban_resources_server.resources_servers.grl_sokoban",
        "grl_sokoban_game_agent.agents.game_agent",
    )
]


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model server costs as much as an agent, twice as much as an environment, and the collector little."""
    path = tmp_path_factory.mktemp("costs") / "costs.json"
    rest = {"episode_ms": 0, "kb_ms": 0, "base_mb": 70, "episode_kb": 10, "copies": 1, "files": 1}
    turn_ms = {"model": 0.2, "agent": 0.2, "environment": 0.1, "collector": 0.01}
    path.write_bytes(
        orjson.dumps({"measured": "nowhere"} | {kind: {"turn_ms": ms, **rest} for kind, ms in turn_ms.items()})
    )
    return path


def replicas(costs: Path, cores: float | None, *overrides: str) -> list[int]:
    config = load_config(*overrides)
    return [
        spec.replicas for spec in with_replicas(config, {spec.name for spec in config.servers}, cores, costs).servers
    ]


@pytest.mark.parametrize("cores", [7.5, 8, 16, 61, 192])
def test_the_processes_of_automatic_replicas_use_about_all_cores(costs: Path, cores: float) -> None:
    found = replicas(costs, cores, *AUTO)
    assert 0.9 * cores <= sum(found) <= 1.1 * cores and min(found) >= 1


@pytest.mark.parametrize("cores", [None, 0.5, 1, 2])
def test_every_server_has_a_process_whatever_the_number_of_cores(costs: Path, cores: float | None) -> None:
    assert replicas(costs, cores, *AUTO) == [1, 1, 1]


def test_a_given_number_of_replicas_is_kept(costs: Path) -> None:
    model, environment, _ = replicas(costs, 16, *AUTO[:1], f"{AUTO[1].removesuffix('auto')}3")
    assert environment == 3
    assert model == replicas(costs, 16, *AUTO[:1])[0] > 3


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/a/b", {"a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000"}, 0.5),
        ("0::/not/visible/in/the/container", {"cpu.max": "25000 100000"}, 0.25),
        ("3:cpuset:/\n4:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "50000", "cpu/a/cpu.cfs_period_us": "100000"}, 0.5),
        ("4:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("0::/", {}, None),
    ],
)
def test_the_quota_of_a_control_group_limits_the_cores(
    groups: str, files: dict[str, str], cores: float | None, tmp_path: Path
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups + "\n")
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert usable_cores(tmp_path) == (len(os.sched_getaffinity(0)) if cores is None else cores)
