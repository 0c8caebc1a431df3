"""Workers of a shared collection without servers: owners, leases and shards as the real ones write them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import orjson

from rollyard.records.rollouts.manifest_records import Manifest
from rollyard.records.rollouts.rollout_keys import Expected, Key
from rollyard.records.types import Json
from rollyard.services.rollouts.shared.blocks import Blocks
from rollyard.services.rollouts.shared.exclusive_files import replace_unsynced
from rollyard.services.rollouts.shared.leases import Leases
from rollyard.services.rollouts.shared.shared_paths import RoundPaths, SharedPaths
from rollyard.services.rollouts.shared.shared_records import Heartbeat, Owner

MANIFEST = Manifest(identity={"rows": 1}, versions={}, created=0.0, output="out.jsonl")


def new_round(folder: Path) -> RoundPaths:
    """The first round of the output `out.jsonl`."""
    paths = SharedPaths(folder / "out.jsonl").round(1)
    paths.create()
    return paths


def owner(token: str, *, host: str = "elsewhere") -> Owner:
    """A worker on another host, whose process cannot be checked."""
    return Owner(worker=token.partition("-")[0], token=token, host=host, pid=1, started=1, machine="")


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def beat(paths: RoundPaths, token: str, number: int = 1, lease_s: float = 60.0, **more: object) -> None:
    """Write a worker's heartbeat."""
    record = Heartbeat.model_validate({"owner": owner(token), "lease_s": lease_s, "beat": number, **more})
    replace_unsynced(paths.workers / f"{token}.json", orjson.dumps(record.model_dump()))


def row(key: Key, answer: str) -> Json:
    """A rollout with an answer that tells who gave it."""
    reward = float(len(answer))
    return {"_ng_task_index": key[0], "_ng_rollout_index": key[1], "reward": reward, "answer": answer}


def failure(key: Key, kind: str = "timeout", time: float = 0.0) -> Json:
    """A failed attempt."""
    return {"_ng_task_index": key[0], "_ng_rollout_index": key[1], "failure_kind": kind, "time": time}


def write_shard(paths: RoundPaths, token: str, rows: Iterable[Json], failures: Iterable[Json] = ()) -> Path:
    """Write the shard of a worker."""
    shard = paths.shard(token)
    shard.output.write_bytes(b"".join(orjson.dumps(found) + b"\n" for found in rows))
    shard.failures.write_bytes(b"".join(orjson.dumps(found) + b"\n" for found in failures))
    shard.manifest.write_bytes(orjson.dumps(MANIFEST.model_dump()))
    return shard.output


def lease_block(paths: RoundPaths, block: int, token: str) -> int:
    """Take the block's next lease; return its generation."""
    leases = Leases(paths)
    generation = leases.table().generations.get(block, 0) + 1
    assert leases.claim(block, generation, owner(token))
    return generation


def blocks(tasks: int, repeats: int, size: int) -> Blocks:
    return Blocks(Expected(tasks, repeats), size)
