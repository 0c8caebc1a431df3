from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollyard.records.errors import Failure
from rollyard.records.run_types import Heartbeat, Registration
from rollyard.services.config.run_config import RunConfig
from rollyard.services.head.registry import ServerRegistry
from tests.support.fixtures import load_text, make_folder, server_yaml
from tests.unit.services.clock import Clock


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    mine = make_folder(tmp_path)
    return load_text(tmp_path, server_yaml(mine) + server_yaml(mine, "{replicas: 2}", name="twins"))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry(config: RunConfig, clock: Clock) -> ServerRegistry:
    registry = ServerRegistry("r1", config.servers, {"one": {"speed": 1}}, expiry_s=10.0, clock=clock)
    for instance in ("environment#1", "twins[0]#1", "twins[1]#1"):
        registry.expect(instance)
    return registry


def registration(
    instance: str = "environment#1", *, name: str = "environment", port: int = 7001, pid: int = 42, **more: Any
) -> Registration:
    return Registration(name=name, instance=instance, url=f"http://127.0.0.1:{port}", pid=pid, **more)


def heartbeat(instance: str = "environment#1", requests: int = 0, cpu: float = 0.0) -> Heartbeat:
    return Heartbeat(instance=instance, requests=requests, in_flight=0, sessions=0, cpu=cpu)


def test_a_ready_instance_is_in_the_directory(registry: ServerRegistry) -> None:
    registry.register(registration(ready=False))
    registry.register(registration(ready=True))
    assert registry.is_ready("environment#1")
    assert registry.directory().servers["environment"] == ["http://127.0.0.1:7001"]


def test_an_instance_beyond_the_heartbeat_limit_is_quiet_until_its_next_heartbeat(
    registry: ServerRegistry, clock: Clock
) -> None:
    url = "http://127.0.0.1:7001"
    registry.register(registration(ready=True))
    clock.now += 10.1
    directory = registry.directory()
    assert (directory.servers["environment"], directory.quiet["environment"]) == ([], [url])
    assert directory.has("environment", url) and not registry.is_ready("environment#1")
    assert registry.instances()[0].status == "timeout"
    registry.record_heartbeat(heartbeat())
    assert registry.directory().servers["environment"] == [url]
    registry.remove("environment#1")
    assert not registry.directory().has("environment", url)


def test_a_slow_start_is_neither_ready_nor_a_timeout(registry: ServerRegistry, clock: Clock) -> None:
    registry.register(registration(ready=False))
    registry.record_heartbeat(heartbeat())
    clock.now += 60.0
    assert registry.instances()[0].status == "starting" and not registry.is_ready("environment#1")


def test_a_silent_replica_leaves_the_directory_and_the_other_stays(registry: ServerRegistry, clock: Clock) -> None:
    for number in (0, 1):
        registry.register(registration(f"twins[{number}]#1", ready=True, name="twins", port=7001 + number))
    clock.now += 8.0
    registry.record_heartbeat(heartbeat("twins[1]#1"))
    clock.now += 8.0
    assert registry.directory().servers["twins"] == ["http://127.0.0.1:7002"]


def test_counters_of_the_last_heartbeat_are_listed(registry: ServerRegistry) -> None:
    registry.register(registration(ready=True))
    registry.record_heartbeat(Heartbeat(instance="environment#1", requests=9, in_flight=2, sessions=1))
    (instance,) = (entry for entry in registry.instances() if entry.server_name == "environment")
    assert (instance.requests, instance.in_flight, instance.sessions, instance.port) == (9, 2, 1, 7001)


def test_a_server_whose_process_ended_stays_listed_as_not_ready(registry: ServerRegistry) -> None:
    registry.register(registration(ready=True))
    registry.remove("environment#1")
    assert [entry.ready for entry in registry.instances() if entry.server_name == "environment"] == [False]


def test_the_request_rate_covers_the_heartbeats_of_the_last_ten_seconds(registry: ServerRegistry, clock: Clock) -> None:
    registry.register(registration(ready=True))
    for requests in (0, 1000, 1000, 1020, 1040, 1060, 1080, 1100):
        registry.record_heartbeat(heartbeat(requests=requests))
        clock.now += 2.0
    instance = next(entry for entry in registry.instances() if entry.server_name == "environment")
    assert instance.requests_per_s == pytest.approx(10.0)


def test_a_replaced_instance_cannot_register(registry: ServerRegistry) -> None:
    registry.register(registration(ready=True))
    registry.remove("environment#1")
    registry.expect("environment#2")
    registry.register(registration("environment#2", ready=True, port=7002))
    for late in (registration(ready=True), registration(ready=False)):
        with pytest.raises(Failure):
            registry.register(late)
    with pytest.raises(Failure):
        registry.record_heartbeat(heartbeat("environment#1"))
    assert registry.directory().servers["environment"] == ["http://127.0.0.1:7002"]


@pytest.mark.parametrize(
    ("rejected", "message"),
    [
        (heartbeat("unknown#1"), "register first"),
        (registration(ready=True, name="enviroment"), "'environment'"),
        (registration("environment#9", ready=True), "'environment#9'.*expected"),
        (registration(ready=True, name="twins"), "belongs to 'environment'"),
    ],
)
def test_a_message_of_an_unknown_or_wrong_instance_is_rejected(
    registry: ServerRegistry, rejected: Registration | Heartbeat, message: str
) -> None:
    registry.register(registration(ready=True))
    with pytest.raises(Failure, match=message):
        if isinstance(rejected, Heartbeat):
            registry.record_heartbeat(rejected)
        else:
            registry.register(rejected)


def test_a_server_whose_processes_are_all_busy_is_a_bottleneck_with_its_mend(registry: ServerRegistry) -> None:
    for number, instance in enumerate(("twins[0]#1", "twins[1]#1")):
        registry.register(registration(instance, ready=True, name="twins", port=7002 + number, pid=43 + number))
    registry.record_heartbeat(heartbeat("twins[0]#1", cpu=0.97))
    assert registry.directory().bottlenecks == {}
    registry.record_heartbeat(heartbeat("twins[1]#1", cpu=0.93))
    sentence = "twins limits the speed: each of its 2 processes uses 93% of a core; set replicas: 4 (or auto) for it"
    assert registry.directory().bottlenecks == {"twins": sentence}
    assert {shown.server_name: shown.bottleneck for shown in registry.instances()} == {
        "environment": "",
        "twins": sentence,
    }


def test_servers_in_one_busy_process_are_one_bottleneck(registry: ServerRegistry) -> None:
    registry.register(registration(ready=True))
    registry.register(registration("twins[0]#1", ready=True, name="twins", port=7002))
    for instance in ("environment#1", "twins[0]#1"):
        registry.record_heartbeat(heartbeat(instance, cpu=0.9))
    (sentence,) = registry.directory().bottlenecks.values()
    assert sentence.startswith("environment, twins share one process") and "without --colocate" in sentence


def test_the_directory_has_the_lowest_limit_of_open_files_of_a_servers_processes(registry: ServerRegistry) -> None:
    for number, limit in enumerate((4096, 1024)):
        instance = f"twins[{number}]#1"
        registry.register(registration(instance, ready=True, name="twins", port=7002 + number, open_files=limit))
    assert registry.directory().open_files == {"twins": 1024}


def test_the_directory_has_the_urls_of_the_instances_that_accept_channels(registry: ServerRegistry) -> None:
    registry.register(registration("twins[0]#1", ready=True, name="twins", port=7002))
    registry.register(registration("twins[1]#1", ready=True, name="twins", port=7003, channels=True))
    assert registry.directory().channels == {"http://127.0.0.1:7003"}
