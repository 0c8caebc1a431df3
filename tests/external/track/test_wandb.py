"""A real offline run of Weights & Biases: its file contains what `wandb sync` would send."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[import-not-found, unused-ignore]

from tests.external.track.files import COUNT, collection, grow, log_training, ng_track

BLOCK = 1 << 15


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "HOME": str(tmp_path)}


def records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: a header of 7 bytes, then leveldb's log format."""
    data, position, content = path.read_bytes(), 7, b""
    while position + 7 <= len(data):
        if BLOCK - position % BLOCK < 7:
            position += BLOCK - position % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        content += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # full, last
            record = Record()
            record.ParseFromString(content)
            content = b""
            yield record


def history(folder: Path) -> list[dict[str, Any]]:
    """The history of the only run, from all its files in the order in which `wandb sync` sends them."""
    paths = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    assert len({path.name for path in paths}) == 1
    read = [record for path in paths for record in records(path)]
    histories = [record.history for record in read if record.WhichOneof("record_type") == "history"]
    return [
        {item.key or "/".join(item.nested_key): orjson.loads(item.value_json) for item in entry.item}
        for entry in histories
    ]


@pytest.mark.smoke
def test_metrics_over_the_rollouts_and_a_table_are_in_the_file_of_the_run(tmp_path: Path, env: dict[str, str]) -> None:
    collection(tmp_path)
    done = ng_track("+name=one", to="wandb", cwd=tmp_path, env=env)
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


def test_repeating_the_command_continues_the_run_without_duplicate_steps(tmp_path: Path, env: dict[str, str]) -> None:
    output = collection(tmp_path)
    for count in (COUNT, COUNT, COUNT + 90):
        grow(output, count)
        done = ng_track(to="wandb", cwd=tmp_path, env=env)
        assert done.status == 0, done.err
    assert f"{COUNT} rollouts" in done.out and "90 of them new" in done.out
    assert [point["_step"] for point in history(tmp_path)] == [50, 100, 120, 150, 200, 210]


def test_a_training_run_is_logged_by_step_and_a_resumed_one_goes_on(tmp_path: Path, env: dict[str, str]) -> None:
    done = log_training("wandb", cwd=tmp_path, env=env)
    assert (done.status, done.err) == (0, "")
    points = {point["_step"]: point for point in history(tmp_path)}
    assert [(step, points[step]["train/reward"]) for step in sorted(points)] == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    assert points[4]["train/reward/format"] == 0.1 and points[4]["eval/correct_rate"] == 0.5
