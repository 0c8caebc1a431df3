"""A finished collection on disk, and ng_track as a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import orjson

from rollyard.records.manifest import Manifest
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.types import Json
from rollyard.services.rollouts.progress import CollectionProgress
from tests.support.commands import Finished, command, command_environ
from tests.support.preloaded import Preloaded
from tests.support.waiting import deadline_s

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
    output.write_bytes(b"".join(orjson.dumps(row(number)) + b"\n" for number in range(count)))


def collection(folder: Path, count: int = COUNT, created: float = 0.0) -> Path:
    paths = RolloutPaths(folder / "rollouts.jsonl")
    grow(paths.output, count)
    identity = {"agent_name": "player", "settings": {"environment": {"level": 3, "names": ["a", "b"]}}}
    paths.manifest.write_text(Manifest(identity=identity, versions={"python": "3"}, created=created).model_dump_json())
    status = CollectionProgress(count).status("complete").model_copy(update={"failures": {"timeout": 2}})
    paths.status.write_text(status.model_dump_json())
    return paths.output


# wandb is not preloaded: it makes a folder when it is imported, which the first process that ends would remove.
_COMMANDS = {"wandb": Preloaded("ng_track"), "mlflow": Preloaded("ng_track", "mlflow")}


async def track(*options: str, cwd: Path) -> Finished:
    return await command("ng_track", *options, cwd=cwd)


def ng_track(*options: str, to: str, cwd: Path, env: Mapping[str, str], rows: str = "rollouts.jsonl") -> Finished:
    arguments = (f"+jsonl_fpath={rows}", f"+to={to}", *options)
    done = _COMMANDS[to].run(arguments, cwd=cwd, env=command_environ(env))
    return Finished(done.returncode, done.stdout, done.stderr)


def log_training(logger: str, *, cwd: Path, env: Mapping[str, str]) -> Finished:
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("log_training.py"), logger],
        cwd=cwd,
        env=command_environ(env),
        capture_output=True,
        text=True,
        timeout=deadline_s(),
    )
    return Finished(done.returncode, done.stdout, done.stderr)
