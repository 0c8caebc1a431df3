"""Other programs change the files of a running collection: it reports what is intact where, and loses nothing."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from rollyard.services.errors import RunError
from rollyard.services.io.jsonl import replace
from rollyard.services.rollouts.appender import JsonLines
from rollyard.services.rollouts.store import RolloutStore, StorePaths


def line(number: int) -> bytes:
    return orjson.dumps({"_ng_task_index": number, "_ng_rollout_index": 0, "reward": 1.0})


LINES = [line(number) for number in range(5)]
WHOLE = b"".join(one + b"\n" for one in LINES)


def opened(output: Path) -> RolloutStore:
    store = RolloutStore(StorePaths(output), {"rows": 9}, {}, resume=True, overwrite=False)
    store.load()
    return store


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "results" / "run.jsonl"


@pytest.fixture
def store(output: Path) -> RolloutStore:
    """Open, with five rollouts."""
    made = opened(output)
    for number, one in enumerate(LINES):
        made.append((number, 0), one)
    return made


def moved(output: Path) -> None:
    output.rename(output.with_name("old.jsonl"))


def moved_and_touched(output: Path) -> None:
    moved(output)
    output.touch()


def removed(output: Path) -> None:
    output.unlink()


def replaced_by_an_editor(output: Path) -> None:
    copy = output.with_name("copy")
    copy.write_bytes(WHOLE + b"\n")
    copy.replace(output)


def replaced_by_a_link(output: Path) -> None:
    output.unlink()
    output.symlink_to("/dev/null")


def folder_moved(output: Path) -> None:
    output.parent.rename(output.parent.with_name("elsewhere"))


def folder_removed(output: Path) -> None:
    shutil.rmtree(output.parent)


@pytest.mark.parametrize(
    "act",
    [moved, moved_and_touched, removed, replaced_by_an_editor, replaced_by_a_link, folder_moved, folder_removed],
)
def test_an_output_that_lost_its_name_is_intact_in_the_file_that_the_error_names(
    store: RolloutStore, output: Path, act: Callable[[Path], None]
) -> None:
    act(output)
    with pytest.raises(RunError) as raised:
        store.check()
    said = str(raised.value)
    store.close()
    whole = [path for path in output.parent.parent.rglob("*.jsonl") if path.read_bytes() == WHOLE and str(path) in said]
    assert len(whole) == 1, said
    assert "\n" not in said


def test_a_recovered_output_goes_on_after_the_rename_that_the_error_asks_for(store: RolloutStore, output: Path) -> None:
    folder_removed(output)
    with pytest.raises(RunError):
        store.check()
    store.close()
    output.with_name("run_recovered.jsonl").rename(output)
    again = opened(output)
    assert len(again.done) == 5
    again.close()


def test_an_output_that_cannot_be_recovered_in_its_folder_is_recovered_elsewhere(
    store: RolloutStore, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    folder_removed(output)
    output.parent.write_text("a file where the folder was")
    with pytest.raises(RunError, match=r"here/run_recovered\.jsonl"):
        store.check()
    store.close()
    assert (here / "run_recovered.jsonl").read_bytes() == WHOLE


def test_a_link_to_the_moved_output_is_as_good_as_the_output(store: RolloutStore, output: Path) -> None:
    moved(output)
    output.symlink_to("old.jsonl")
    store.verify()
    store.close()


@pytest.mark.parametrize("size", [0, 1, len(WHOLE) // 2, len(WHOLE) - 1])
def test_nothing_is_appended_to_an_output_that_was_cut(store: RolloutStore, output: Path, size: int) -> None:
    os.truncate(output, size)
    with pytest.raises(RunError, match=f"truncated from {len(WHOLE)} to {size} bytes"):
        store.append((5, 0), line(5))
    store.close()
    assert output.read_bytes() == WHOLE[:size]
    again = opened(output)
    assert len(again.done) == WHOLE[:size].count(b"\n")
    again.close()


@pytest.mark.parametrize("foreign", [b"\n", line(7) + b"\n", b"half a line"])
def test_nothing_is_appended_behind_what_another_program_wrote(
    store: RolloutStore, output: Path, foreign: bytes
) -> None:
    with output.open("ab") as file:
        file.write(foreign)
    with pytest.raises(RunError, match=f"grew by {len(foreign)} bytes"):
        store.append((5, 0), line(5))
    store.close()
    assert output.read_bytes() == WHOLE + foreign


@pytest.mark.parametrize("reopened", [False, True])
def test_a_line_that_was_edited_in_place_is_named_at_the_end(store: RolloutStore, output: Path, reopened: bool) -> None:
    if reopened:
        store.close()
        store = opened(output)
    with output.open("r+b") as file:
        file.seek(WHOLE.index(b"1.0", 2 * len(LINES[0])))
        file.write(b"9.0")
    store.check()
    with pytest.raises(RunError, match=r"run\.jsonl: line 3 was changed"):
        store.verify()
    store.close()


@pytest.mark.parametrize("beside", ["failures", "manifest"])
def test_sidecar_files_of_the_output_are_checked_too(store: RolloutStore, output: Path, beside: str) -> None:
    path: Path = getattr(store.paths, beside)
    before = path.read_bytes()
    path.unlink()
    with pytest.raises(RunError, match=path.name):
        store.check()
    assert beside == "failures" or path.read_bytes() == before
    store.close()


def test_a_changed_manifest_is_kept_next_to_the_new_one(store: RolloutStore) -> None:
    path = store.paths.manifest
    before = path.read_bytes()
    path.write_text("{}")
    with pytest.raises(RunError, match=r"run_manifest_recovered\.json has its original contents"):
        store.check()
    assert path.with_name("run_manifest_recovered.json").read_bytes() == before
    store.close()


def test_a_failed_write_removes_only_what_it_wrote(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output.parent.mkdir()
    lines = JsonLines(output)
    lines.append(LINES[0])
    real = os.write

    def full(fd: int, data: bytes) -> int:
        if fd == lines._fd:
            real(fd, data[:3])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
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
    def refuse(fd: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(RunError, match="its file system does not support locks"):
        opened(output)


def test_a_pipe_is_no_output(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.jsonl")
    with pytest.raises(RunError, match="not a regular file"):
        opened(tmp_path / "run.jsonl")


def test_an_overwritten_output_is_locked_before_it_has_its_name(
    store: RolloutStore, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    real, free = Path.rename, list[bool]()

    def watched(self: Path, target: Path) -> Path:
        found = real(self, target)
        if Path(target) == output:
            try:
                JsonLines(output).close()
                free.append(True)
            except RunError:
                free.append(False)
        return found

    monkeypatch.setattr(Path, "rename", watched)
    RolloutStore(StorePaths(output), {}, {}, resume=True, overwrite=True).close()
    assert free == [False]
    (aside,) = output.parent.glob("run.jsonl.*")
    assert aside.read_bytes() == WHOLE


def test_a_file_that_is_replaced_is_synced_before_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, done = tmp_path / "manifest.json", list[str]()
    real_sync, real_replace = os.fsync, Path.replace

    def synced(fd: int) -> None:
        done.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        real_sync(fd)

    def replaced(self: Path, target: Path) -> Path:
        done.append("replaced")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    replace(path, b"{}")
    assert done == [f".manifest.json.{os.getpid()}", "replaced", tmp_path.name]


def test_a_truncated_last_line_is_saved_in_its_own_file_before_it_is_removed(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output.parent.mkdir()
    output.write_bytes(LINES[0] + b"\nto")
    done = list[str]()
    real_sync, real_cut = os.fsync, os.ftruncate

    def synced(fd: int) -> None:
        done.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        real_sync(fd)

    def cut(fd: int, size: int) -> None:
        done.append("cut")
        real_cut(fd, size)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "ftruncate", cut)
    JsonLines(output).close()
    assert done == ["run_torn.jsonl", "results", "cut"]
