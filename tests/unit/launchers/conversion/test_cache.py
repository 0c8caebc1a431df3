"""Converting once: what is published, accepted, refused, waited for and removed, and where it is stored."""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.launchers.conversion.cache import (
    MANIFEST,
    ConversionRequest,
    Versions,
    conversion_target,
    convert,
    identifier,
    is_converted,
    read_manifest,
)
from rollyard.records.errors import OperatorError, RunError
from tests.unit.launchers.conversion.fake_conversion import FAST, CopyingConverter, write_checkpoint

CACHE = "log/nemo-rl/hf_eval_checkpoints"
NEVER = CopyingConverter(error=AssertionError("converted twice"))


def run(request: ConversionRequest, converter: CopyingConverter | None = None) -> tuple[Path, list[str]]:
    lines: list[str] = []
    path = convert(request, converter or CopyingConverter(), settings=FAST, report=lines.append)
    return path, lines


def path_of(request: ConversionRequest, converter: CopyingConverter | None = None, **changes: Any) -> Path:
    return run(replace(request, **changes), converter)[0]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock") and path.name[0] != ".")


@pytest.fixture
def asked(tmp_path: Path) -> ConversionRequest:
    return write_checkpoint(tmp_path)


def test_the_first_conversion_is_published_with_its_origin_and_the_second_uses_it(
    asked: ConversionRequest, tmp_path: Path
) -> None:
    request = replace(asked, environ={**asked.environ, "SLURM_JOB_ID": "4711"})
    assert not is_converted(request)
    target = conversion_target(request)
    path, lines = run(request)
    assert path == target == tmp_path / CACHE / path.name and path.name.startswith("step_170_")
    assert lines == ["Acquired lock, converting DCP to HF format...", f"Successfully converted checkpoint to: {path}"]
    again, lines = run(request, NEVER)
    assert is_converted(request) and again == conversion_target(request) == path
    assert lines == [f"Found cached HF checkpoint at: {path}", "Using cached checkpoint, skipping conversion"]
    found = read_manifest(path)
    assert found is not None
    assert (found.checkpoint, found.config) == (str(request.checkpoint), str(request.config))
    assert (found.pid, found.job_id, found.key[:16]) == (os.getpid(), "4711", path.name.removeprefix("step_170_"))
    sizes = {name: file.size for name, file in found.files.items()}
    assert sizes == {"metadata": 8, "__0_0.distcp": 7, "__1_0.distcp": 7}


def test_a_conversion_without_a_manifest_is_refused_and_left_alone(asked: ConversionRequest) -> None:
    """B13: --hf-ckpt-path was removed with force, whatever it contained."""
    target = conversion_target(asked)
    target.mkdir(parents=True)
    (target / "config.json").write_text("{}")
    for request in (asked, replace(asked, token="t"), replace(asked, hf_path=target, token="t")):
        with pytest.raises(OperatorError, match=re.escape(str(target))):
            run(request)
        with pytest.raises(OperatorError):
            conversion_target(request)
    assert names(target) == ["config.json"]


@pytest.mark.parametrize("kind", ["file", "link", "empty folder"])
def test_only_an_empty_folder_in_the_place_of_the_result_is_used(
    asked: ConversionRequest, tmp_path: Path, kind: str
) -> None:
    place = tmp_path / "hf"
    if kind == "empty folder":
        place.mkdir()
        assert path_of(asked, hf_path=place) == place
        return
    (place if kind == "file" else tmp_path / "elsewhere").touch()
    if kind == "link":
        place.symlink_to("elsewhere")
    with pytest.raises(OperatorError, match=re.escape(str(place.resolve()))):
        path_of(asked, hf_path=place)


def test_a_conversion_of_another_checkpoint_at_the_given_path_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "hf"
    first, second = (write_checkpoint(tmp_path / name, name.encode()) for name in ("one", "others"))
    path_of(first, hf_path=place)
    with pytest.raises(OperatorError, match=f"{re.escape(str(place))} .*another checkpoint"):
        path_of(second, hf_path=place)
    # With force, it gets the next version, and each finds its own from then on.
    assert path_of(second, hf_path=place, token="t") == path_of(second, hf_path=place) == tmp_path / "hf-2"
    assert path_of(first, hf_path=place) == place


@pytest.mark.parametrize("damage", [lambda file: file.unlink(), lambda file: file.write_bytes(b"short")])
def test_a_damaged_conversion_is_neither_used_nor_removed(
    asked: ConversionRequest, damage: Callable[[Path], object]
) -> None:
    path = path_of(asked)
    damage(path / "__1_0.distcp")
    assert not is_converted(asked)
    repaired, lines = run(asked)
    assert repaired == path.with_name(f"{path.name}-2") and path.exists()
    assert lines[0].startswith(f"{path} ") and "__1_0.distcp" in lines[0]
    assert path_of(asked) == repaired


def test_an_unreadable_manifest_is_none(asked: ConversionRequest) -> None:
    manifest = path_of(asked) / MANIFEST
    content = manifest.read_bytes()
    for wrong in (b"", b"{}", content[: len(content) // 2], orjson.dumps({**orjson.loads(content), "files": 3})):
        manifest.write_bytes(wrong)
        with pytest.raises(OperatorError, match=r"has no valid rollyard_conversion\.json"):
            run(asked)


def test_a_forced_conversion_is_the_next_version_once_for_each_token_and_touches_no_file_of_a_reader(
    asked: ConversionRequest,
) -> None:
    first = path_of(asked)

    def files() -> list[tuple[str, int, int]]:
        return [(str(file), file.stat().st_ino, file.stat().st_mtime_ns) for file in sorted(first.rglob("*"))]

    before = files()
    second, third = (first.with_name(f"{first.name}-{number}") for number in (2, 3))
    assert path_of(asked, token="launch1") == path_of(asked, NEVER, token="launch1") == second
    # A launch without force uses the newest; the jobs of the first launch keep theirs.
    assert path_of(asked, token="launch2") == path_of(asked) == third
    assert path_of(asked, token="launch1") == second
    assert files() == before
    other = first.with_name(f"{first.name}-7")  # a folder with the name of a version is neither used nor overwritten
    other.mkdir()
    (other / "mine.txt").touch()
    assert path_of(asked, token="launch3") == first.with_name(f"{first.name}-8")
    assert names(other) == ["mine.txt"]


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "model.safetensors")


@pytest.mark.parametrize(
    ("converter", "message"),
    [
        (CopyingConverter(error=RunError("corrupt")), "corrupt"),
        (CopyingConverter(error=FULL), rf"^[^\n]*{FULL.strerror} \(model\.safetensors\)$"),
        (CopyingConverter(during=shutil.rmtree), "paused"),  # by another process, meanwhile
    ],
)
def test_a_failed_conversion_leaves_nothing_and_the_next_tries_again(
    asked: ConversionRequest, tmp_path: Path, converter: CopyingConverter, message: str
) -> None:
    with pytest.raises(RunError, match=message):
        run(asked, converter)
    assert names(tmp_path / CACHE) == [] and not is_converted(asked)
    run(asked)


def test_a_checkpoint_that_changes_during_the_conversion_is_not_published(
    asked: ConversionRequest, tmp_path: Path
) -> None:
    file = Path(asked.checkpoint) / "__0_0.distcp"
    with pytest.raises(RunError, match=r"__0_0\.distcp"):
        run(asked, CopyingConverter(during=lambda folder: file.write_bytes(b"next step")))
    assert names(tmp_path / CACHE) == []


def test_too_little_space_is_noticed_before_anything_is_written(
    asked: ConversionRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(100, 90, 10))
    with pytest.raises(RunError, match=r"\b10 bytes .*\b22\b"):
        run(asked, NEVER)


def test_leftovers_of_killed_conversions_are_removed_and_other_folders_are_not(
    asked: ConversionRequest, tmp_path: Path
) -> None:
    name = conversion_target(asked).name
    mine = [f"{name}.tmp.mine", f"x{name}.tmp.0a1bffff"]
    for folder in (f"{name}.tmp.1-0a1b", f"{name}.tmp.0a1bffff", *mine):
        (tmp_path / CACHE / folder).mkdir(parents=True)
        (tmp_path / CACHE / folder / "model.safetensors").touch()
    run(asked)
    assert names(tmp_path / CACHE) == sorted([name, *mine])


@contextmanager
def held(request: ConversionRequest, error: Exception | None = None) -> Iterator[threading.Event]:
    """Another conversion holds the lock. It succeeds, or fails with `error`, once the event is set."""
    started, proceed = threading.Event(), threading.Event()

    def wait(_: Path) -> None:
        started.set()
        proceed.wait()

    def target() -> None:
        try:
            run(request, CopyingConverter(during=wait, error=error))
        except RunError:
            assert error

    thread = threading.Thread(target=target)
    thread.start()
    started.wait()
    try:
        yield proceed
    finally:
        proceed.set()
        thread.join()


@pytest.mark.parametrize("error", [None, RunError("lm_head.weight"), OSError(errno.EIO, "Input/output error")])
def test_a_waiter_uses_the_conversion_of_the_other_or_converts_itself_if_that_fails(
    asked: ConversionRequest, error: Exception | None
) -> None:
    """B1: a waiting job did not check whether the other one had succeeded."""
    own: list[Path] = []
    lines: list[str] = []
    with held(asked, error) as proceed:

        def report(line: str) -> None:
            if line.startswith("It is process"):
                proceed.set()
            else:
                lines.append(line)

        convert(asked, CopyingConverter(during=own.append), settings=FAST, report=report)
    assert lines[0] == "Another process is converting, waiting for completion..." and is_converted(asked)
    assert len(own) == (error is not None)
    if error is None:
        assert lines[1:] == ["Conversion completed by another process"]


def test_waiting_is_bounded(asked: ConversionRequest) -> None:
    impatient = FAST.model_copy(update={"max_wait_s": 0.05})
    with held(asked), pytest.raises(RunError, match=rf"process {os.getpid()} on .*--max-wait"):
        convert(asked, CopyingConverter(), settings=impatient, report=print)


def test_a_process_that_gets_the_lock_after_another_published_uses_that(
    asked: ConversionRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    require = Versions.require_own

    def meanwhile(versions: Versions) -> None:
        monkeypatch.setattr(Versions, "require_own", require)
        run(asked)

    monkeypatch.setattr(Versions, "require_own", meanwhile)
    assert run(asked, NEVER)[1] == ["Another process completed conversion, using cached checkpoint"]


@pytest.mark.parametrize(
    ("checkpoint", "name"),
    [
        ("/results/grpo/step_170/policy/weights", "step_170"),
        ("/results/grpo/final/actor", "final"),
        ("/results/a run/my best: step.5/weights", "my_best_step_5"),
        ("/results/$(touch x)\n'q'/weights", "touch_x_q"),
        ("/weights/policy", ""),
        ("/", ""),
        ("/results/" + "x" * 300, "x" * 64),
    ],
)
def test_the_identifier_is_the_last_specific_folder_without_unsafe_characters(checkpoint: str, name: str) -> None:
    assert identifier(Path(checkpoint)) == name
