"""A real Weights & Biases run, offline: what `wandb sync` would send is read back from its file."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[import-not-found, unused-ignore]

from tests.external.track.files import COUNT, collection, grow, track

BLOCK = 1 << 15


def records(path: Path) -> Iterator[Any]:
    """Of a .wandb file: leveldb's log format behind a header of 7 bytes."""
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # full, last
            record = Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def history(folder: Path) -> list[dict[str, Any]]:
    """Of all files of the one run, in the order in which `wandb sync` sends them."""
    paths = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    assert len({path.name for path in paths}) == 1
    read = [record for path in paths for record in records(path)]
    found = [record.history for record in read if record.WhichOneof("record_type") == "history"]
    return [
        {item.key or "/".join(item.nested_key): orjson.loads(item.value_json) for item in one.item} for one in found
    ]


async def test_numbers_over_the_rollouts_and_a_table_are_in_the_runs_file(tmp_path: Path) -> None:
    collection(tmp_path)
    env = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "HOME": str(tmp_path)}
    done = await track("+jsonl_fpath=rollouts.jsonl", "+to=wandb", "+name=one", cwd=tmp_path, env=env)
    assert done.status == 0, done.err
    assert f"{COUNT} rollouts tracked" in done.out
    points = [point for point in history(tmp_path) if "reward/mean" in point]
    assert [(point["_step"], point["reward/mean"], point["success/rate"]) for point in points] == [
        (50, 5.0, 0.5),
        (100, 5.0, 0.5),
        (120, 5.0, 0.5),
    ]
    assert points[-1]["failed_attempts/timeout"] == 2
    (table,) = tmp_path.glob("wandb/offline-run-*/files/media/table/rollout_table_*.table.json")
    read = orjson.loads(table.read_bytes())
    assert len(read["data"]) == 50 and "call: step" in read["data"][0][-1]


async def test_the_same_rollouts_again_go_on_with_the_run_and_no_step_is_there_twice(tmp_path: Path) -> None:
    output = collection(tmp_path)
    env = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "HOME": str(tmp_path)}
    for count in (COUNT, COUNT, COUNT + 90):
        grow(output, count)
        done = await track("+jsonl_fpath=rollouts.jsonl", "+to=wandb", cwd=tmp_path, env=env)
        assert done.status == 0, done.err
    assert "the first 120 rollouts" in done.out and "90 of them new" in done.out
    assert [point["_step"] for point in history(tmp_path)] == [50, 100, 120, 150, 200, 210]
