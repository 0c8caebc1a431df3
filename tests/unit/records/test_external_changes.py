"""Other programs change the files of a running collection: it loses nothing and names the intact file."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

from rollyard.records.errors import RunError
from rollyard.records.jsonl import replace
from rollyard.records.rollout_file import RolloutPaths
from rollyard.services.rollouts.store import JsonLines, RolloutStore


def encoded_row(number: int) -> bytes:
    return orjson.dumps({"_ng_task_index": number, "_ng_rollout_index": 0, "reward": 1.0})


LINES = [encoded_row(number) for number in range(5)]
CONTENT = b"".join(line + b"\n" for line in LINES)


def open_store(output: Path) -> RolloutStore:
    store = RolloutStore(RolloutPaths(output), {"rows": 9}, {}, resume=True, overwrite=False)
    store.load()
    return store


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "results" / "run.jsonl"


@pytest.fixture
def store(output: Path) -> Iterator[RolloutStore]:
    store = open_store(output)
    for number, line in enumerate(LINES):
        store.append((number, 0), line)
    yield store
    store.close()


def move(output: Path) -> None:
    output.rename(output.with_name("old.jsonl"))


def replace_like_an_editor(output: Path) -> None:
    copy = output.with_name("copy")
    copy.write_bytes(CONTENT + b"\n")
    copy.replace(output)


def move_and_touch(output: Path) -> None:
    move(output)
    output.touch()


def replace_with_a_link(output: Path) -> None:
    output.unlink()
    output.symlink_to("/dev/null")


CHANGES: dict[str, Callable[[Path], object]] = {
    "moved": move,
    "moved and made again": move_and_touch,
    "removed": Path.unlink,
    "replaced by a file": replace_like_an_editor,
    "replaced by a link": replace_with_a_link,
    "folder moved": lambda output: output.parent.rename(output.parent.with_name("elsewhere")),
    "folder removed": lambda output: shutil.rmtree(output.parent),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_error_names_the_file_with_the_intact_output(store: RolloutStore, output: Path, change: str) -> None:
    CHANGES[change](output)
    with pytest.raises(RunError) as raised:
        store.check()
    message = str(raised.value)
    named = [path for path in output.parent.parent.rglob("*.jsonl") if str(path) in message]
    assert [path.read_bytes() for path in named].count(CONTENT) == 1, message
    assert "\n" not in message


def test_a_recovered_output_resumes_after_it_is_renamed(store: RolloutStore, output: Path) -> None:
    shutil.rmtree(output.parent)
    with pytest.raises(RunError):
        store.check()
    store.close()
    output.with_name("run_recovered.jsonl").rename(output)
    reopened_store = open_store(output)
    assert len(reopened_store.done) == 5
    reopened_store.close()


def test_an_output_that_cannot_be_recovered_in_its_folder_is_recovered_elsewhere(
    store: RolloutStore, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workdir = tmp_path / "workdir"
    workdir.mkdir()
    monkeypatch.chdir(workdir)
    shutil.rmtree(output.parent)
    output.parent.write_text("a file where the folder was")
    with pytest.raises(RunError, match=r"workdir/run_recovered\.jsonl"):
        store.check()
    assert (workdir / "run_recovered.jsonl").read_bytes() == CONTENT


def test_a_link_to_the_moved_output_is_accepted(store: RolloutStore, output: Path) -> None:
    move(output)
    output.symlink_to("old.jsonl")
    store.verify()


@pytest.mark.parametrize("size", [0, 1, len(CONTENT) // 2, len(CONTENT) - 1])
def test_nothing_is_appended_to_a_truncated_output(store: RolloutStore, output: Path, size: int) -> None:
    os.truncate(output, size)
    with pytest.raises(RunError, match=f"truncated from {len(CONTENT)} to {size} bytes"):
        store.append((5, 0), encoded_row(5))
    store.close()
    assert output.read_bytes() == CONTENT[:size]
    reopened_store = open_store(output)
    assert len(reopened_store.done) == CONTENT[:size].count(b"\n")
    reopened_store.close()


@pytest.mark.parametrize("foreign", [b"\n", encoded_row(7) + b"\n", b"half a line"])
def test_nothing_is_appended_after_the_data_of_another_program(
    store: RolloutStore, output: Path, foreign: bytes
) -> None:
    with output.open("ab") as file:
        file.write(foreign)
    with pytest.raises(RunError, match=f"grew by {len(foreign)} bytes"):
        store.append((5, 0), encoded_row(5))
    assert output.read_bytes() == CONTENT + foreign


@pytest.mark.parametrize("reopened", [False, True])
def test_a_line_that_was_edited_in_place_is_named_by_verify(store: RolloutStore, output: Path, reopened: bool) -> None:
    if reopened:
        store.close()
        store = open_store(output)
    with output.open("r+b") as file:
        file.seek(CONTENT.index(b"1.0", 2 * len(LINES[0])))
        file.write(b"9.0")
    store.check()
    with pytest.raises(RunError, match=r"run\.jsonl: line 3 "):
        store.verify()
    store.close()


@pytest.mark.parametrize("sidecar", ["failures", "manifest"])
def test_a_missing_sidecar_file_is_an_error(store: RolloutStore, output: Path, sidecar: str) -> None:
    path: Path = getattr(store.paths, sidecar)
    before = path.read_bytes()
    path.unlink()
    with pytest.raises(RunError, match=path.name):
        store.check()
    assert sidecar == "failures" or path.read_bytes() == before


def test_a_changed_manifest_is_kept_next_to_the_new_one(store: RolloutStore) -> None:
    path = store.paths.manifest
    before = path.read_bytes()
    path.write_text("{}")
    with pytest.raises(RunError, match=r"run_manifest_recovered\.json"):
        store.check()
    assert path.with_name("run_manifest_recovered.json").read_bytes() == before


def test_a_failed_write_removes_only_its_own_bytes(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output.parent.mkdir()
    lines = JsonLines(output)
    lines.append(LINES[0])
    real_write = os.write

    def write_until_full(fd: int, data: bytes) -> int:
        if fd == lines._fd:
            real_write(fd, data[:3])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_write(fd, data)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write_until_full)
        with pytest.raises(RunError, match="No space left"):
            lines.append(LINES[1])
    assert output.read_bytes() == LINES[0] + b"\n"
    lines.append(LINES[1])
    lines.verify()
    lines.close()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_not_reported_as_another_writer(
    output: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def unsupported(fd: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.raises(RunError, match=r"file system.* locks"):
        open_store(output)


def test_a_pipe_is_rejected_as_output(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.jsonl")
    with pytest.raises(RunError, match="regular file"):
        open_store(tmp_path / "run.jsonl")


def test_a_new_output_is_locked_before_it_gets_its_name(
    store: RolloutStore, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    real_rename, tried = Path.rename, list[Path]()

    def rename_and_try_lock(self: Path, target: Path) -> Path:
        renamed = real_rename(self, target)
        if Path(target) == output:
            with pytest.raises(RunError):
                JsonLines(output)
            tried.append(output)
        return renamed

    monkeypatch.setattr(Path, "rename", rename_and_try_lock)
    RolloutStore(RolloutPaths(output), {}, {}, resume=True, overwrite=True).close()
    assert tried == [output]
    (backup,) = output.parent.glob("run.jsonl.*")
    assert backup.read_bytes() == CONTENT


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names, real_sync = list[str](), os.fsync

    def record_sync(fd: int) -> None:
        names.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        real_sync(fd)

    monkeypatch.setattr(os, "fsync", record_sync)
    return names


def test_a_file_is_synced_before_it_is_replaced_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: list[str]
) -> None:
    path, real_replace = tmp_path / "manifest.json", Path.replace

    def record_replace(self: Path, target: Path) -> Path:
        steps.append("replaced")
        return real_replace(self, target)

    monkeypatch.setattr(Path, "replace", record_replace)
    replace(path, b"{}")
    assert steps == [f".manifest.json.{os.getpid()}", "replaced", tmp_path.name]


def test_a_truncated_last_line_is_saved_in_its_own_file_before_it_is_removed(
    output: Path, monkeypatch: pytest.MonkeyPatch, steps: list[str]
) -> None:
    output.parent.mkdir()
    output.write_bytes(LINES[0] + b"\nto")
    real_truncate = os.ftruncate

    def record_truncate(fd: int, size: int) -> None:
        steps.append("truncated")
        real_truncate(fd, size)

    monkeypatch.setattr(os, "ftruncate", record_truncate)
    JsonLines(output).close()
    assert steps == ["run_torn.jsonl", "results", "truncated"]
