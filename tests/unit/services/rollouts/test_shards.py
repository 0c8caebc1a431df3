"""Shares of several jobs, and `merge`, which makes one file of theirs."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.locked_files import InUse
from rollyard.records.manifest import ChangedParameters, Manifest
from rollyard.records.rollout_file import RolloutPaths, read_status
from rollyard.records.rollout_keys import Expected, Key, Shard
from rollyard.records.types import Json
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.shards import merge, move_aside, shard_files, shard_progress
from rollyard.services.rollouts.store import JsonLines
from tests.support.stacks import keys_of, read_rows

TASKS, REPEATS = 6, 3
EVERY = [(task, repeat) for task in range(TASKS) for repeat in range(REPEATS)]
IDENTITY: Json = {"rows": TASKS, "num_repeats": REPEATS, "responses_create_params": {"temperature": 0.8}}


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "x.jsonl"


def row(key: Key, **more: object) -> Json:
    return {"_ng_task_index": key[0], "_ng_rollout_index": key[1], "reward": 1.0, **more}


def failure(key: Key, kind: str = "timeout") -> Json:
    return {"_ng_task_index": key[0], "_ng_rollout_index": key[1], "failure_kind": kind}


def write(path: Path, rows: Iterable[Json], tail: bytes = b"", **identity: object) -> Path:
    path.write_bytes(b"".join(orjson.dumps(found) + b"\n" for found in rows) + tail)
    manifest = Manifest(identity={**IDENTITY, **identity}, versions={}, created=0.0, output=path.name)
    RolloutPaths(path).manifest.write_bytes(orjson.dumps(manifest.model_dump()))
    return path


def share(text: str) -> list[Key]:
    shard = Shard.parse(text)
    assert shard is not None
    return [key for key in EVERY if key in shard]


def write_shard(output: Path, text: str, keys: Iterable[Key] | None = None, tail: bytes = b"") -> Path:
    shard = Shard.parse(text)
    assert shard is not None
    found = share(text) if keys is None else keys
    return write(shard.output(output), [row(key, by=text) for key in found], tail)


def files_of(output: Path) -> set[str]:
    return {path.name for path in output.parent.iterdir()}


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_rollout_is_in_the_share_of_exactly_one_job(count: int) -> None:
    shards = [Shard(number, count) for number in range(1, count + 1)]
    expected = Expected(200, 5)
    found = [[shard for shard in shards if (task, repeat) in shard] for task in range(200) for repeat in range(5)]
    assert all(len(owners) == 1 for owners in found)
    sizes = [Expected(200, 5, shard).count for shard in shards]
    assert sum(sizes) == expected.count
    assert max(sizes) < 1.5 * expected.count / count


def test_a_share_never_changes() -> None:
    assert share("1/4") == [(0, 0), (0, 2), (2, 0), (2, 1), (4, 1)]


@pytest.mark.parametrize("text", ["0/4", "5/4", "4", "1/0", "a/b", "1/4/2", "-1/4", "1 / 4", ""])
def test_a_share_that_is_not_i_of_n_is_refused(text: str) -> None:
    with pytest.raises(OperatorError, match="expected i/n"):
        Shard.parse(text)


def test_the_merged_file_has_every_rollout_once_and_takes_the_place_of_the_shards(output: Path) -> None:
    for number in range(1, 5):
        write_shard(output, f"{number}/4")
    found = merge(output)
    assert (found.progress.measured, found.files) == (len(EVERY), 4)
    assert keys_of(read_rows(output)) == EVERY
    assert files_of(output) == {"x.jsonl", "x_manifest.json", "x_status.json"}
    status = read_status(output)
    assert status is not None and (status.state, status.measured) == ("complete", len(EVERY))
    assert Manifest.model_validate_json(RolloutPaths(output).manifest.read_bytes()).output == "x.jsonl"
    content = output.read_bytes()
    assert merge(output).progress.measured == len(EVERY)
    assert output.read_bytes() == content


def test_what_killed_jobs_and_merges_were_writing_is_removed_by_the_next_merge(output: Path) -> None:
    shards = [write_shard(output, text) for text in ("1/2", "2/2")]
    for path in (output, *shards):
        RolloutPaths(path).status.with_name(f".{RolloutPaths(path).status.name}.4321").write_bytes(b"{")
    merge(output)
    assert files_of(output) == {"x.jsonl", "x_manifest.json", "x_status.json"}


def test_files_of_several_n_and_an_earlier_output_are_one_collection(output: Path) -> None:
    write(output, [row(key, by="alone") for key in EVERY[:5]])
    write_shard(output, "1/4", [*EVERY[3:5], *share("1/4")])
    write_shard(output, "2/3")
    found = merge(output)
    rows = read_rows(output)
    held = {*EVERY[:5], *share("1/4"), *share("2/3")}
    assert keys_of(rows) == sorted(held)
    assert [found["by"] for found in rows[:5]] == ["alone"] * 5
    assert found.progress.measured == len(held) < found.progress.expected


def test_shards_stay_until_nothing_is_missing(output: Path) -> None:
    write_shard(output, "1/2")
    second = write_shard(output, "2/2", share("2/2")[1:])
    assert merge(output).progress.measured == len(EVERY) - 1
    assert len(shard_files(output)) == 2
    write(second, [row(key) for key in share("2/2")])
    assert merge(output).progress.measured == len(EVERY)
    assert (shard_files(output), keys_of(read_rows(output))) == ([], EVERY)


def test_torn_lines_are_set_aside_and_not_merged(output: Path) -> None:
    write(output, [row(EVERY[0])], b'{"torn')
    write_shard(output, "1/1", EVERY[1:-1], orjson.dumps(row(EVERY[-1])))
    assert merge(output).progress.measured == len(EVERY) - 1
    assert (output.with_name("x_torn.jsonl")).read_bytes() == b'{"torn'
    assert (output.with_name("x.shard-1-of-1_torn.jsonl")).read_bytes() == orjson.dumps(row(EVERY[-1]))


def test_a_torn_line_of_failed_attempts_is_set_aside_before_its_file_is_removed(output: Path) -> None:
    torn = b'{"_ng_task_index": 0'
    RolloutPaths(write_shard(output, "1/1")).failures.write_bytes(torn)
    merge(output)
    assert (output.parent / "x.shard-1-of-1_failures_torn.jsonl").read_bytes() == torn


def test_failed_attempts_and_materialized_inputs_are_merged_once(output: Path) -> None:
    materialized = [{"_ng_task_index": 0, "_ng_rollout_index": 1, "input": "a"}]
    for number in (1, 2):
        shard = RolloutPaths(write_shard(output, f"{number}/2", share(f"{number}/2")[1:]))
        lines = [failure(share(f"{number}/2")[0], kind) for kind in ("timeout", "bad_task")]
        shard.failures.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
        shard.materialized.write_bytes(orjson.dumps(materialized[0]) + b"\n")
    for _ in range(2):
        found = merge(output)
        assert (found.progress.measured, found.refused) == (len(EVERY) - 2, 2)
        assert len(read_rows(RolloutPaths(output).failures)) == 4
        assert read_rows(RolloutPaths(output).materialized) == materialized


def test_a_shard_of_another_collection_is_refused_with_the_difference(output: Path) -> None:
    write_shard(output, "1/2")
    other = Shard(2, 2).output(output)
    write(other, [row(key) for key in share("2/2")], responses_create_params={"temperature": 1.0})
    with pytest.raises(ChangedParameters, match=r"(?s)shard-2-of-2.*temperature: 0\.8 .*1\.0") as refused:
        merge(output)
    assert str(other) in str(refused.value)
    assert not output.exists()
    write(other, [], responses_create_params={"temperature": 1.0})  # it has measured nothing
    assert merge(output).progress.measured == len(share("1/2"))


def test_a_shard_without_a_manifest_is_refused(output: Path) -> None:
    write_shard(output, "1/2")
    RolloutPaths(write_shard(output, "2/2")).manifest.unlink()
    with pytest.raises(OperatorError, match="shard-2-of-2_manifest"):
        merge(output)


def test_a_job_that_is_running_keeps_its_file(output: Path) -> None:
    write_shard(output, "1/2")
    with closing(JsonLines(write_shard(output, "2/2"))) as running:
        found = merge(output)
        assert (found.progress.measured, found.running) == (len(EVERY), 1)
        assert shard_files(output) == [running.path]
        with pytest.raises(InUse, match="shard-2-of-2"):
            merge(output, only_idle=True)
    merge(output)
    assert shard_files(output) == []


@pytest.mark.parametrize("left", range(15))
def test_a_removal_that_was_interrupted_is_continued_by_the_next_merge(
    output: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    for number in range(1, 4):
        write_shard(output, f"{number}/3")
    unlink = Path.unlink

    def fail(path: Path, missing_ok: bool = False) -> None:
        nonlocal left
        if path.name.startswith("x.shard"):
            left -= 1
            if left < 0:
                raise OSError("killed")
        unlink(path, missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", fail)
        with pytest.raises(OSError, match="killed"):
            merge(output)
    merge(output)
    assert keys_of(read_rows(output)) == EVERY
    assert files_of(output) == {"x.jsonl", "x_manifest.json", "x_status.json"}


def test_a_merge_whose_output_was_moved_removes_nothing_of_the_new_one(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shard(output, "1/1")

    def start_over(*_: object) -> int:
        (output.parent / "moved").mkdir()
        for path in output.parent.glob("x*"):
            path.rename(output.parent / "moved" / path.name)
        write_shard(output, "1/1", EVERY[:1])
        return 0

    monkeypatch.setattr(CollectionProgress, "resumed", start_over)
    with pytest.raises(RunError, match="was moved to"):
        merge(output)
    assert files_of(output) == {"moved", "x.shard-1-of-1.jsonl", "x.shard-1-of-1_manifest.json"}


@pytest.mark.parametrize("left", range(6))
def test_moving_shards_aside_that_was_interrupted_is_continued_by_the_next_command(
    output: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    for text in ("1/2", "2/2"):
        RolloutPaths(write_shard(output, text)).failures.write_bytes(orjson.dumps(failure(EVERY[0])) + b"\n")
    rename = Path.rename

    def fail(path: Path, target: Path) -> Path:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError("killed")
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", fail)
        with pytest.raises(OSError, match="killed"):
            move_aside(output)
    move_aside(output)
    assert not [name for name in files_of(output) if name.endswith((".json", ".jsonl"))]


def test_an_empty_file_of_a_job_that_was_killed_at_once_is_removed_with_the_others(output: Path) -> None:
    write_shard(output, "1/1")
    Shard(2, 4).output(output).touch()
    assert merge(output).progress.measured == len(EVERY)
    assert shard_files(output) == []


def test_the_progress_of_all_jobs_is_that_of_the_latest_n(output: Path) -> None:
    assert shard_progress(output) is None
    for text, updated, measured in (("1/2", 1.0, 9), ("1/3", 5.0, 4), ("2/3", 4.0, 5)):
        path = RolloutPaths(write_shard(output, text))
        status = {"state": "running", "expected": 6, "measured": measured, "updated": updated, "started": 0.0}
        path.status.write_bytes(orjson.dumps(CollectionProgress(1).status("running").model_dump() | status))
    assert shard_progress(output) == (9, len(EVERY))


def test_shards_of_an_earlier_version_are_merged(output: Path) -> None:
    folder = output.parent / "x_shared/round-0001/shards"
    folder.mkdir(parents=True)
    write(folder / "a-1.jsonl", [row(key) for key in EVERY[:10]])
    write(folder / "b-2.jsonl", [row(key) for key in EVERY[8:]])
    assert merge(output).progress.measured == len(EVERY)
    assert (keys_of(read_rows(output)), shard_files(output)) == (EVERY, [])
