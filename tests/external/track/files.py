"""A finished collection on disk, and ng_track as a process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

import orjson

from rollyard.services.io.rollout_paths import RolloutPaths
from rollyard.services.rollouts.manifest_records import Manifest
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.types import Json
from tests.support.commands import Finished, command_environ

COUNT = 120


def row(number: int, **more: object) -> Json:
    """A rollout: odd numbers are solved with reward 10, even numbers have reward 0."""
    output = [
        {"type": "function_call", "name": "step", "arguments": '{"action": 1}', "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": "##_#"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
    ]
    return {
        "_ng_task_index": number // 4,
        "_ng_rollout_index": number % 4,
        "responses_create_params": {"input": "Solve it."},
        "response": {"output": output, "usage": {"output_tokens": 7}},
        "reward": 10.0 * (number % 2),
        "success": bool(number % 2),
        "finish_reason": "done",
        "truncated": False,
        "timings": {"total_s": 2.0, "model_calls": 3},
        **more,
    }


def grow(output: Path, count: int) -> None:
    """Write the first `count` rollouts to `output`."""
    output.write_bytes(b"".join(orjson.dumps(row(number)) + b"\n" for number in range(count)))


def collection(folder: Path, count: int = COUNT, created: float = 0.0) -> Path:
    """A rollout file with its manifest and status."""
    paths = RolloutPaths(folder / "rollouts.jsonl")
    grow(paths.output, count)
    identity = {"agent_name": "player", "settings": {"environment": {"level": 3, "names": ["a", "b"]}}}
    paths.manifest.write_text(Manifest(identity=identity, versions={"python": "3"}, created=created).model_dump_json())
    status = CollectionProgress(count).status("complete").model_copy(update={"failures": {"timeout": 2}})
    paths.status.write_text(status.model_dump_json())
    return paths.output


async def track(*options: str, cwd: Path, env: Mapping[str, str] | None = None) -> Finished:
    """Run `ng_track` to its end."""
    return await _run("-m", "rollyard.services.cli.track", *options, cwd=cwd, env=env)


async def log_training(logger: str, *, cwd: Path, env: Mapping[str, str]) -> Finished:
    """Run `log_training.py` to its end."""
    return await _run(str(Path(__file__).with_name("log_training.py")), logger, cwd=cwd, env=env)


async def _run(*arguments: str, cwd: Path, env: Mapping[str, str] | None) -> Finished:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *arguments),
        cwd=cwd,
        env=command_environ(env or {}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 300)
    assert process.returncode is not None
    return Finished(process.returncode, out.decode(), err.decode())
