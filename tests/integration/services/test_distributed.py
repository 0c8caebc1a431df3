"""A run whose parts start separately: shared keys, server selection, joining the head, and rejection by it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rollyard.cli import run as ng_run
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.run_types import Heartbeat, Registration
from rollyard.services.config.run_config import RunConfig
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.runtime.join import ListenAddress, join_run, select_servers, shared_keys
from rollyard.services.runtime.run_dir import RunFolder
from rollyard.services.runtime.stack import Stack
from tests.support.certificates import issue, tls_keys
from tests.support.fixtures import listening, make_server, unused_url
from tests.support.stacks import AGENT, collect, load_config
from tests.support.waiting import deadline_s, until

TOKEN = "0123456789abcdef-shared"
KEYS = shared_keys(TOKEN)
OTHER_MODEL = "policy_model.responses_api_models.builtin_model.model=another"


def test_the_same_token_gives_the_same_keys_and_another_token_gives_others() -> None:
    assert shared_keys(TOKEN) == KEYS
    other = shared_keys(TOKEN + "x")
    assert other.run_id != KEYS.run_id and other.secret != KEYS.secret


@pytest.mark.parametrize("token", [None, "", "short"])
def test_a_missing_or_short_token_is_rejected_with_the_command_that_generates_one(token: str | None) -> None:
    with pytest.raises(OperatorError, match=r"16 characters"):
        shared_keys(token)


@pytest.mark.parametrize(
    ("only", "selected"),
    [
        (["policy_model"], ["policy_model"]),
        (["agents"], [AGENT]),
        (["responses_api_agents", "policy_model"], ["policy_model", AGENT]),
        ([], []),
    ],
)
def test_servers_are_selected_by_name_and_by_family(only: list[str], selected: list[str]) -> None:
    assert [spec.name for spec in select_servers(load_config().servers, only)] == selected


def test_an_unknown_server_name_is_rejected_with_the_closest_match() -> None:
    with pytest.raises(OperatorError, match=r"--only 'policy' is neither a server nor a family.*policy_model"):
        select_servers(load_config().servers, ["policy"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["+only=[policy_model]", "+head=127.0.0.1:1"], "need a shared token"),
        (["+head=127.0.0.1:1"], "requires"),
        (["+only=[]", "+head=127.0.0.1:1", f"+token={TOKEN}"], "pass one of them"),
        (["+only=[]", "+host=0.0.0.0", f"+token={TOKEN}"], "the head's own address is"),
    ],
)
def test_conflicting_options_are_rejected_before_anything_starts(options: list[str], message: str, here: Path) -> None:
    with pytest.raises(OperatorError, match=message):
        ng_run.run(["+config_paths=[configs/sokoban_builtin.yaml]", *options])


@contextlib.asynccontextmanager
async def head_alone(config: RunConfig, folder: Path) -> AsyncIterator[tuple[Stack, asyncio.Task[None]]]:
    """A head on its own, and the task that waits for the other servers."""
    files = RunFolder.create(folder, KEYS.run_id)
    stack = Stack(config, KEYS, files, print_line=lambda line: None, launcher=None, head_port=0, here=[])
    starting = asyncio.create_task(stack.start())
    try:
        yield stack, starting
    finally:
        starting.cancel()
        await stack.stop()


async def join(
    config: RunConfig,
    url: str,
    only: list[str],
    stop: asyncio.Event,
    messages: list[str],
    timeout_s: float = deadline_s(),
) -> None:
    await join_run(
        config,
        select_servers(config.servers, only),
        KEYS,
        ListenAddress(url),
        stop,
        environ={},
        print_line=messages.append,
        timeout_s=timeout_s,
    )


async def test_servers_that_join_remotely_play_as_one_run(tmp_path: Path) -> None:
    config, stop, messages = load_config(), asyncio.Event(), list[str]()
    async with head_alone(config, tmp_path) as (stack, starting):
        parts = [
            asyncio.create_task(join(config, stack.head_url, [name], stop, messages))
            for name in ("policy_model", "resources_servers", "agents")
        ]
        try:
            await asyncio.wait_for(starting, deadline_s())
            state, progress = await collect(stack, tmp_path / "out.jsonl", repeats=1, limit=2)
        finally:
            stop.set()
            await asyncio.gather(*parts)
    assert (state, progress.measured) == ("complete", 2)
    assert len([line for line in messages if " ready " in line]) == 3


async def test_a_server_whose_settings_differ_from_the_heads_is_rejected(tmp_path: Path) -> None:
    async with head_alone(load_config(), tmp_path) as (stack, _):
        await until(lambda: (stack.folder.path / "head.json").exists())
        with pytest.raises(OperatorError, match=r"policy_model \(model\)"):
            await join(load_config(OTHER_MODEL), stack.head_url, ["policy_model"], asyncio.Event(), [])


async def test_a_server_with_another_token_is_rejected(tmp_path: Path) -> None:
    config, other = load_config(), shared_keys("some-other-shared-token")
    async with head_alone(config, tmp_path) as (stack, _):
        await until(lambda: (stack.folder.path / "head.json").exists())
        with pytest.raises(OperatorError, match="same token"):
            await join_run(
                config,
                select_servers(config.servers, ["agents"]),
                other,
                ListenAddress(stack.head_url),
                asyncio.Event(),
                environ={},
                print_line=lambda line: None,
                timeout_s=deadline_s(),
            )


async def test_a_head_whose_certificate_is_not_accepted_is_not_waited_for(tmp_path: Path) -> None:
    keys = tls_keys(issue(tmp_path))
    async with listening(make_server("head", keys=keys)) as head:
        with pytest.raises(OperatorError, match="certificate is not accepted"):
            await join(load_config(), head.url, ["agents"], asyncio.Event(), [])


async def test_a_head_that_does_not_start_in_time_is_named() -> None:
    config, messages, nowhere = load_config(), list[str](), unused_url()
    with pytest.raises(RunError, match=rf"{nowhere} within 0.5 s"):
        await join(config, nowhere, ["agents"], asyncio.Event(), messages, timeout_s=0.5)
    assert len(messages) == 1 and nowhere in messages[0]


def test_an_expired_external_instance_is_replaced_and_a_live_one_stays() -> None:
    now = [0.0]
    registry = ServerRegistry("r", load_config().servers, {}, elsewhere=[AGENT], clock=lambda: now[0])
    for instance, time in (("silent", 0.0), ("alive", 8.0), ("new", 11.0)):
        now[0] = time
        registry.register(Registration(name=AGENT, instance=instance, url=f"http://{instance}:1", pid=1, ready=True))
    assert [instance.process_name for instance in registry.instances() if instance.server_name == AGENT] == [
        "alive",
        "new",
    ]


def test_an_external_instance_that_was_replaced_at_once_is_removed_after_a_minute_of_silence() -> None:
    now = [0.0]
    registry = ServerRegistry("r", load_config().servers, {}, elsewhere=[AGENT], clock=lambda: now[0])
    for instance in ("killed", "new"):
        registry.register(Registration(name=AGENT, instance=instance, url=f"http://{instance}:1", pid=1, ready=True))
    now[0] = 61.0
    registry.record_heartbeat(Heartbeat(instance="new", requests=0, in_flight=0, sessions=0))
    (left,) = (one for one in registry.instances() if one.server_name == AGENT)
    assert (left.process_name, left.status) == ("new", "success")


def test_an_external_instance_is_replaced_at_once_by_another_one_at_its_address() -> None:
    registry = ServerRegistry("r", load_config().servers, {}, elsewhere=[AGENT], clock=lambda: 0.0)
    for instance, is_ready in (("killed", True), ("new", False)):
        registry.register(Registration(name=AGENT, instance=instance, url="http://h:1", pid=1, ready=is_ready))
    assert [one.process_name for one in registry.instances() if one.server_name == AGENT] == ["new"]
    assert registry.directory().servers[AGENT] == []


@pytest.mark.parametrize(("ready", "silent_s", "status"), [(True, 59.0, "timeout"), (False, 599.0, "starting")])
def test_an_external_instance_that_is_busy_or_starting_stays_while_the_others_report(
    ready: bool, silent_s: float, status: str
) -> None:
    now, changes = [0.0], list[str]()
    servers = load_config().servers

    def on_change(act: str, **detail: Any) -> None:
        changes.append(act)

    registry = ServerRegistry("r", servers, {}, elsewhere=[AGENT], on_change=on_change, clock=lambda: now[0])
    for instance, is_ready in (("first", True), ("second", ready)):
        registration = Registration(name=AGENT, instance=instance, url=f"http://{instance}:1", pid=1, ready=is_ready)
        registry.register(registration)
    now[0] = silent_s
    registry.record_heartbeat(Heartbeat(instance="first", requests=0, in_flight=0, sessions=0))
    registry.register(registration.model_copy(update={"instance": "first", "url": "http://first:1"}))
    assert registry.directory().has(AGENT, "http://second:1") is ready and not changes
    assert [one.status for one in registry.instances() if one.process_name == "second"] == [status]


def test_an_external_instance_that_exited_while_it_started_is_removed_after_its_start_limit() -> None:
    now = [0.0]
    registry = ServerRegistry("r", load_config().servers, {}, elsewhere=[AGENT], clock=lambda: now[0])
    registry.register(Registration(name=AGENT, instance="killed", url="http://h:1", pid=1))
    now[0] = 601.0
    registry.register(Registration(name=AGENT, instance="new", url="http://h:2", pid=1))
    assert [one.process_name for one in registry.instances() if one.server_name == AGENT] == ["new"]
