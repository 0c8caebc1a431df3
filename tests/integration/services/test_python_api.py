"""rollyard.stack, connect and collect: what they start and stop, and what they guarantee."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

import rollyard
from rollyard.errors import OperatorError, RunError
from rollyard.services.runtime.run_dir import find_run, running_heads

MODEL: dict[str, Any] = {"policy_model": {"responses_api_models": {"builtin_model": {}}}}
CONFIG: dict[str, Any] = {
    **MODEL,
    "sokoban": {"resources_servers": {"grl_sokoban": {}}},
    "player": {
        "agents": {"game_agent": {"resources_server": {"name": "sokoban"}, "model_server": {"name": "policy_model"}}}
    },
}
PUZZLE = {"dim_room": [6, 6], "num_boxes": 1, "responses_create_params": {"input": "Solve.", "temperature": 0}}
ROWS = [{"seed": seed, **PUZZLE} for seed in range(3)]


def children() -> set[int]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                found.add(int(path.parent.name))
    return found


@pytest.mark.parametrize("colocate", [True, False])
async def test_leaving_the_stack_stops_every_server_and_removes_the_head_file(tmp_path: Path, colocate: bool) -> None:
    before = children()
    async with rollyard.stack(CONFIG, colocate=colocate, folder=tmp_path) as stack:
        assert stack.servers == {
            "policy_model": "responses_api_models",
            "sokoban": "resources_servers",
            "player": "agents",
        }
        urls = [stack.url(name) for name in stack.servers]
        async with httpx.AsyncClient() as client:
            assert [(await client.get(f"{url}/health")).status_code for url in urls] == [200, 200, 200]
        assert len(running_heads(tmp_path)) == 1
    assert running_heads(tmp_path) == []
    assert children() <= before
    async with httpx.AsyncClient() as client:
        for url in urls:
            with pytest.raises(httpx.ConnectError):
                await client.get(f"{url}/health")
    with pytest.raises(RunError, match="not running"):
        stack.url("player")


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_it_works_on_either_event_loop(tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def play() -> float | None:
        async with rollyard.stack(CONFIG, colocate=True, folder=tmp_path) as stack:
            return (await rollyard.collect(stack, ROWS, tmp_path / "out.jsonl")).mean_reward

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert (runner.run(play()) or 0) > 5


async def test_two_stacks_run_concurrently_and_each_collects_from_its_own_servers(tmp_path: Path) -> None:
    async with (
        rollyard.stack(CONFIG, colocate=True, folder=tmp_path) as one,
        rollyard.stack(CONFIG, "++policy_model.responses_api_models.builtin_model.model=other", colocate=True) as two,
    ):
        assert not {one.url(name) for name in one.servers} & {two.url(name) for name in two.servers}
        for stack, model in ((one, "builtin"), (two, "other")):
            out = tmp_path / f"{model}.jsonl"
            summary = await rollyard.collect(stack, ROWS, out)
            assert [row["response"]["model"] for row in summary.rollouts] == [model] * 3


@pytest.mark.parametrize(
    ("config", "overrides", "message"),
    [
        ("no_such.yaml", (), "'no_such.yaml' not found"),
        ({"a": 1}, (), "no server"),
        (CONFIG, ("+polic_model.x=1",), "'polic_model'"),
        ({**MODEL, "policy_model": {"responses_api_models": {"builtin_model": {"host": "0.0.0.0"}}}}, (), "run token"),
    ],
)
def test_a_wrong_config_is_an_operator_error_before_anything_starts(
    tmp_path: Path, config: Any, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(OperatorError, match=message):
        rollyard.stack(config, *overrides, folder=tmp_path)


async def test_a_stack_that_cannot_start_raises_the_message_of_ng_run_and_leaves_nothing(tmp_path: Path) -> None:
    app = tmp_path / "resources_servers/broken/app.py"
    app.parent.mkdir(parents=True)
    app.write_text(
        "from contextlib import asynccontextmanager\n"
        "from rollyard import Environment, serve\n"
        "from rollyard.errors import OperatorError\n"
        "class Broken(Environment):\n"
        "    @classmethod\n"
        "    @asynccontextmanager\n"
        "    async def lifespan(cls, settings):\n"
        "        raise OperatorError('no licence: export LICENCE=...')\n"
        "        yield\n"
        "server = serve(Broken)\n"
    )
    config = {**MODEL, "broken": {"resources_servers": {"broken": {}}}}
    stack = rollyard.stack(config, colocate=True, folder=tmp_path)
    for _ in range(2):  # a second try raises the same error
        with pytest.raises(OperatorError, match="broken: no licence"):
            await stack.start()
    assert running_heads(tmp_path) == []


async def test_an_unknown_server_and_a_second_start_are_run_errors(tmp_path: Path) -> None:
    async with rollyard.stack(MODEL, colocate=True, folder=tmp_path) as stack:
        with pytest.raises(RunError, match="did you mean 'policy_model'"):
            stack.url("polcy_model")
        with pytest.raises(RunError, match="already running"):
            await stack.start()


async def test_a_second_call_resumes_and_passes_on_only_its_own_rollouts(tmp_path: Path) -> None:
    out, rollouts = tmp_path / "out.jsonl", []
    async with rollyard.stack(CONFIG, colocate=True, folder=tmp_path) as stack:

        def stop_after_two(rollout: Any) -> None:
            rollouts.append(rollout)
            if len(rollouts) == 2:
                raise KeyError("an error in the caller's callback")

        with pytest.raises(KeyError):
            await rollyard.collect(
                stack, ROWS, out, num_repeats=2, num_samples_in_parallel=1, on_rollout=stop_after_two
            )
        assert len(rollouts) == 2
        summary = await rollyard.collect(stack, iter(ROWS), out, num_repeats=2, on_rollout=rollouts.append)
    keys = [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rollyard.read_rollouts(out)]
    assert (summary.state, summary.measured, summary.collected) == ("complete", 6, 4)
    assert sorted(keys) == [(task, repeat) for task in range(3) for repeat in range(2)]
    assert sorted((row["_ng_task_index"], row["_ng_rollout_index"]) for row in rollouts) == sorted(keys)


async def test_a_cancelled_collection_can_be_resumed(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    async with rollyard.stack(CONFIG, colocate=True, folder=tmp_path) as stack:
        first = asyncio.Event()
        task = asyncio.create_task(
            rollyard.collect(
                stack, ROWS, out, num_repeats=4, num_samples_in_parallel=1, on_rollout=lambda _: first.set()
            )
        )
        await first.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        summary = await rollyard.collect(stack, ROWS, out, num_repeats=4)
    assert summary.state == "complete"
    assert 0 < summary.collected < 12
    assert len(list(summary.rollouts)) == 12


async def test_failed_rollouts_are_counted_and_have_no_reward(tmp_path: Path) -> None:
    rows = [*ROWS, {**PUZZLE, "dim_room": [1, 1], "seed": 1}]
    async with rollyard.stack(CONFIG, colocate=True, folder=tmp_path) as stack:
        summary = await rollyard.collect(stack, rows, tmp_path / "out.jsonl")
    assert (summary.state, summary.measured, summary.failed) == ("incomplete", 3, 1)
    assert summary.failures == {"bad_task": 1}
    assert len(summary.failures_file.read_text().splitlines()) == 1


INVALID_ROWS_OR_OPTIONS: list[tuple[Any, dict[str, Any], str]] = [
    ([{"x": {1}}], {}, "row 1 .*JSON"),
    (["x"], {}, "row 1 .*str"),
    (ROWS, {"agent_name": "plyer"}, "'player'"),
    (ROWS, {"responses_create_params": {"temperatures": 1}}, "'temperature'"),
    ("no_such.jsonl", {}, "no_such.jsonl"),
]


async def test_invalid_rows_or_options_are_an_operator_error(tmp_path: Path) -> None:
    async with rollyard.stack(CONFIG, colocate=True, folder=tmp_path) as stack:
        for rows, options, message in INVALID_ROWS_OR_OPTIONS:
            with pytest.raises(OperatorError, match=message):
                await rollyard.collect(stack, rows, tmp_path / "out.jsonl", **options)


async def test_a_connection_collects_and_closing_it_stops_nothing(tmp_path: Path) -> None:
    async with rollyard.stack(CONFIG, colocate=True, folder=tmp_path, token="secret") as stack:
        async with rollyard.connect(folder=tmp_path) as found:
            summary = await rollyard.collect(found, ROWS, tmp_path / "out.jsonl")
            assert found.url("player") == stack.url("player")
            assert found.openai("policy_model")["api_key"] == "secret"
        async with rollyard.connect(stack.head_url, token="secret") as by_url:
            assert by_url.servers == stack.servers
    assert summary.state == "complete"


async def test_a_connection_to_a_run_of_another_folder_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with rollyard.stack(CONFIG, colocate=True, folder=tmp_path / "other") as stack:
        url = stack.head_url
        monkeypatch.setattr(rollyard.api, "find_run", partial(find_run, default=stack.head_url))
        async with rollyard.connect(folder=tmp_path) as found:
            assert found.servers == stack.servers
    (warning,) = (record for record in caplog.records if url in record.message)
    assert warning.levelname == "WARNING"


async def test_a_connection_to_no_stack_is_a_run_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no running stack"):
        await rollyard.connect("127.0.0.1:1", folder=tmp_path).start()


OUT_OF_RANGE: list[tuple[str, Any]] = [
    ("num_repeats", 0),
    ("num_repeats", 1.5),
    ("num_repeats", True),
    ("num_samples_in_parallel", "3"),
    ("rollout_timeout_s", "1"),
    ("max_failure_rate", float("nan")),
    ("agent_name", 5),
    ("num_repeats_add_seed", 1),
    ("num_samples_in_parallel", 0),
    ("max_attempts", 0),
    ("limit", 0),
    ("rollout_timeout_s", -1.0),
    ("max_failure_rate", 7.0),
]


async def test_an_argument_out_of_range_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    stack = rollyard.connect(folder=tmp_path)  # never entered: the arguments are checked first
    for name, value in OUT_OF_RANGE:
        with pytest.raises(OperatorError, match=f"{name} is {value!r}"):
            await rollyard.collect(stack, ROWS, tmp_path / "out.jsonl", **{name: value})
    assert list(tmp_path.iterdir()) == []


WRONG_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"rows": 5}, "rows is 5;"),
    ({"rows": {"a": 1}}, r"rows is .* \(dict\);"),
    ({"out": None}, "out is None;"),
    ({"responses_create_params": ["a"]}, r"responses_create_params is .* \(list\);"),
    ({"responses_create_params": {"stop": {1}}}, "responses_create_params .*JSON"),
    ({"responses_create_params": {"metadata": {1: "a"}}}, "responses_create_params .*JSON"),
    ({"responses_create_params": {"top_p": float("nan")}}, "responses_create_params .*JSON"),
    ({"on_rollout": "print"}, "on_rollout is 'print';"),
    ({"on_rollout": asyncio.sleep}, "on_rollout is .* async"),
    ({"stack": CONFIG}, r"stack is .* \(dict\);"),
]


async def test_an_argument_of_the_wrong_type_is_refused_by_name(tmp_path: Path) -> None:
    given: dict[str, Any] = {"stack": rollyard.connect(folder=tmp_path), "rows": ROWS, "out": tmp_path / "out.jsonl"}
    for arguments, named in WRONG_ARGUMENTS:
        with pytest.raises(OperatorError, match=named):
            await rollyard.collect(**{**given, **arguments})


WRONG_STACK_ARGUMENTS: list[tuple[list[Any], dict[str, Any], str]] = [
    ([5], {}, "config is 5;"),
    ([["a.yaml", 5]], {}, r"config is .* \(list\);"),
    ([None], {}, "config is None"),
    ([CONFIG, 5], {}, r"overrides is \(5,\) \(tuple\);"),
    ([CONFIG], {"colocate": "yes"}, "colocate is 'yes';"),
    ([CONFIG], {"folder": 5}, "folder is 5;"),
    ([CONFIG], {"server_roots": "mine"}, "server_roots is 'mine';"),
    ([CONFIG], {"head_port": "80"}, "head_port is '80';"),
    ([CONFIG], {"ready_timeout_s": None}, "ready_timeout_s is None;"),
]


def test_a_stack_refuses_an_argument_of_the_wrong_type_by_name() -> None:
    for positional, named, refusal in WRONG_STACK_ARGUMENTS:
        with pytest.raises(OperatorError, match=refusal):
            rollyard.stack(*positional, **named)


async def test_errors_name_the_arguments_of_the_call_and_not_the_options_of_commands(tmp_path: Path) -> None:
    def message(raised: pytest.ExceptionInfo[OperatorError]) -> str:
        assert "--" not in str(raised.value)
        return str(raised.value)

    with pytest.raises(OperatorError) as raised:
        rollyard.stack(
            {"policy_model": {"responses_api_models": {"builtin_model": {"host": "0.0.0.0"}}}}, folder=tmp_path
        )
    assert "token=" in message(raised)
    two = {**CONFIG, "second": CONFIG["player"]}
    async with rollyard.stack(two, colocate=True, folder=tmp_path) as stack:
        with pytest.raises(OperatorError) as raised:
            await rollyard.collect(stack, ROWS, tmp_path / "out.jsonl")
        assert "agent_name=..." in message(raised)
        await rollyard.collect(stack, ROWS[:1], tmp_path / "out.jsonl", agent_name="player")
        with pytest.raises(OperatorError) as raised:
            await rollyard.collect(stack, ROWS[:1], tmp_path / "out.jsonl", agent_name="second")
        assert "overwrite=True" in message(raised) and "Repeat the original call" in message(raised)
