"""Converting once: what is published, accepted, refused, waited for and removed, and where it is stored."""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from rollyard.launchers.conversion.cache import (
    MANIFEST,
    ConversionManifest,
    ConversionRequest,
    conversion_target,
    convert,
    identifier,
    is_converted,
    read_manifest,
)
from rollyard.records.errors import OperatorError, RunError
from tests.unit.launchers.conversion.fake_conversion import FAST, CopyingConverter, write_checkpoint

CACHE = "log/nemo-rl/hf_eval_checkpoints"


def run(request: ConversionRequest, converter: CopyingConverter | None = None) -> tuple[Path, list[str]]:
    lines: list[str] = []
    path = convert(request, converter or CopyingConverter(), settings=FAST, report=lines.append)
    return path, lines


def manifest(folder: Path) -> ConversionManifest:
    found = read_manifest(folder)
    assert found
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock") and path.name[0] != ".")


def test_the_first_conversion_is_published_and_the_second_uses_it(tmp_path: Path) -> None:
    request = write_checkpoint(tmp_path)
    assert not is_converted(request)
    target = conversion_target(request)
    path, lines = run(request)
    assert path == target == tmp_path / CACHE / path.name
    assert path.name.startswith("step_170_")
    assert lines == ["Acquired lock, converting DCP to HF format...", f"Successfully converted checkpoint to: {path}"]
    assert is_converted(request)
    again, lines = run(request, CopyingConverter(error=AssertionError("converted twice")))
    assert again == conversion_target(request) == path
    assert lines == [f"Found cached HF checkpoint at: {path}", "Using cached checkpoint, skipping conversion"]


def test_the_manifest_tells_the_origin_and_the_files(tmp_path: Path) -> None:
    request = write_checkpoint(tmp_path)
    request = replace(request, environ={**request.environ, "SLURM_JOB_ID": "4711"})
    path, _ = run(request)
    found = manifest(path)
    assert (found.checkpoint, found.config) == (str(request.checkpoint), str(request.config))
    assert (found.pid, found.job_id, found.key[:16]) == (os.getpid(), "4711", path.name.removeprefix("step_170_"))
    assert {name: file.size for name, file in found.files.items()} == {
        "metadata": 8,
        "__0_0.distcp": 7,
        "__1_0.distcp": 7,
    }


def test_a_conversion_without_a_manifest_is_refused_and_left_alone(tmp_path: Path) -> None:
    """B13: --hf-ckpt-path was removed with force, whatever it contained."""
    request = write_checkpoint(tmp_path)
    target = conversion_target(request)
    target.mkdir(parents=True)
    (target / "config.json").write_text("{}")
    for asked in (request, replace(request, token="t"), replace(request, hf_path=target, token="t")):
        with pytest.raises(OperatorError, match=re.escape(str(target))):
            run(asked)
        with pytest.raises(OperatorError):
            conversion_target(asked)
    assert names(target) == ["config.json"]


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_file_in_the_place_of_the_result_is_refused(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "hf"
    if kind == "file":
        place.touch()
    else:
        (tmp_path / "elsewhere").touch()
        place.symlink_to("elsewhere")
    with pytest.raises(OperatorError, match=re.escape(str(place.resolve()))):
        run(replace(write_checkpoint(tmp_path), hf_path=place))


def test_an_empty_folder_in_the_place_of_the_result_is_used(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    assert run(replace(write_checkpoint(tmp_path), hf_path=tmp_path / "hf"))[0] == tmp_path / "hf"


def test_a_conversion_of_another_checkpoint_at_the_given_path_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "hf"
    first = replace(write_checkpoint(tmp_path / "one"), hf_path=place)
    run(first)
    second = replace(write_checkpoint(tmp_path / "two", b"others"), hf_path=place)
    with pytest.raises(OperatorError, match=f"{re.escape(str(place))} .*another checkpoint"):
        run(second)
    # With force, it gets the next version, and each finds its own from then on.
    assert run(replace(second, token="t"))[0] == tmp_path / "hf-2"
    assert run(second)[0] == tmp_path / "hf-2"
    assert run(first)[0] == place


@pytest.mark.parametrize("damage", [lambda file: file.unlink(), lambda file: file.write_bytes(b"short")])
def test_a_damaged_conversion_is_neither_used_nor_removed(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    request = write_checkpoint(tmp_path)
    path, _ = run(request)
    damage(path / "__1_0.distcp")
    assert not is_converted(request)
    repaired, lines = run(request)
    assert repaired == path.with_name(f"{path.name}-2")
    assert lines[0].startswith(f"{path} ") and "__1_0.distcp" in lines[0]
    assert path.exists()
    assert run(request)[0] == repaired


def test_changed_content_of_the_same_size_is_found_on_demand(tmp_path: Path) -> None:
    request = write_checkpoint(tmp_path)
    path, _ = run(request)
    (path / "__1_0.distcp").write_bytes(b"WEIGHTS")
    assert run(request)[0] == path
    assert run(replace(request, verify=True))[0] == path.with_name(f"{path.name}-2")


def test_an_unreadable_manifest_is_none(tmp_path: Path) -> None:
    request = write_checkpoint(tmp_path)
    path, _ = run(request)
    content = (path / MANIFEST).read_bytes()
    for wrong in (b"", b"{}", content[: len(content) // 2], orjson.dumps({**orjson.loads(content), "files": 3})):
        (path / MANIFEST).write_bytes(wrong)
        with pytest.raises(OperatorError, match=r"has no valid rollyard_conversion\.json"):
            run(request)


def test_a_forced_conversion_is_the_next_version_once_for_each_token(tmp_path: Path) -> None:
    request = write_checkpoint(tmp_path)
    first, _ = run(request)
    forced, _ = run(replace(request, token="launch1"))
    assert forced == first.with_name(f"{first.name}-2")
    again, _ = run(replace(request, token="launch1"), CopyingConverter(error=AssertionError("converted twice")))
    assert again == forced
    assert run(replace(request, token="launch2"))[0] == first.with_name(f"{first.name}-3")
    # A launch without force uses the newest; the jobs of the first launch keep theirs.
    assert run(request)[0] == first.with_name(f"{first.name}-3")
    assert run(replace(request, token="launch1"))[0] == forced


def test_a_forced_conversion_touches_no_file_that_a_reader_may_open(tmp_path: Path) -> None:
    request = write_checkpoint(tmp_path)
    path, _ = run(request)

    def files() -> list[tuple[str, int, int]]:
        return [(str(file), file.stat().st_ino, file.stat().st_mtime_ns) for file in sorted(path.rglob("*"))]

    before = files()
    run(replace(request, token="t"))
    assert files() == before


def test_a_folder_with_a_versions_name_is_not_used_and_not_overwritten(tmp_path: Path) -> None:
    request = replace(write_checkpoint(tmp_path), hf_path=tmp_path / "hf")
    run(request)
    (tmp_path / "hf-7").mkdir()
    (tmp_path / "hf-7" / "mine.txt").touch()
    assert run(replace(request, token="t"))[0] == tmp_path / "hf-8"
    assert names(tmp_path / "hf-7") == ["mine.txt"]


def test_a_failed_conversion_leaves_nothing_and_the_next_tries_again(tmp_path: Path) -> None:
    request = write_checkpoint(tmp_path)
    with pytest.raises(RunError, match="corrupt"):
        run(request, CopyingConverter(error=RunError("corrupt")))
    assert names(tmp_path / CACHE) == []
    assert not is_converted(request)
    run(request)


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    request = write_checkpoint(tmp_path)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "model.safetensors")
    with pytest.raises(RunError, match=rf"^[^\n]*{os.strerror(errno.ENOSPC)} \(model\.safetensors\)$"):
        run(request, CopyingConverter(error=full))
    assert names(tmp_path / CACHE) == []


def test_too_little_space_is_noticed_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = write_checkpoint(tmp_path)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(100, 90, 10))
    with pytest.raises(RunError, match=r"\b10 bytes .*\b22\b"):
        run(request, CopyingConverter(error=AssertionError("started")))


def test_a_checkpoint_that_changes_during_the_conversion_is_not_published(tmp_path: Path) -> None:
    request = write_checkpoint(tmp_path)
    file = Path(request.checkpoint) / "__0_0.distcp"
    with pytest.raises(RunError, match=r"__0_0\.distcp"):
        run(request, CopyingConverter(during=lambda folder: file.write_bytes(b"next step")))
    assert names(tmp_path / CACHE) == []


def test_leftovers_of_killed_conversions_are_removed_and_other_folders_are_not(tmp_path: Path) -> None:
    request = write_checkpoint(tmp_path)
    name = conversion_target(request).name
    cache = tmp_path / CACHE
    cache.mkdir(parents=True, exist_ok=True)
    for leftover in (f"{name}.tmp.1-0a1b", f"{name}.tmp.0a1bffff", f"{name}.tmp.mine", f"x{name}.tmp.0a1bffff"):
        (cache / leftover).mkdir()
        (cache / leftover / "model.safetensors").touch()
    run(request)
    assert names(cache) == sorted([name, f"{name}.tmp.mine", f"x{name}.tmp.0a1bffff"])


def test_an_owner_that_was_paused_for_too_long_publishes_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="paused"):
        run(write_checkpoint(tmp_path), CopyingConverter(during=shutil.rmtree))
    assert names(tmp_path / CACHE) == []


def in_the_background(request: ConversionRequest, during: threading.Event, error: Exception | None) -> threading.Thread:
    """Start a conversion that waits for `during` before it succeeds or fails. Returns once it holds the lock."""
    started = threading.Event()

    def work(folder: Path) -> None:
        started.set()
        during.wait()

    def target() -> None:
        try:
            run(request, CopyingConverter(during=work, error=error))
        except RunError:
            assert error

    thread = threading.Thread(target=target)
    thread.start()
    started.wait()
    return thread


def wait_for(request: ConversionRequest, proceed: threading.Event, converter: CopyingConverter) -> list[str]:
    """Run a conversion that finds the lock held; the holder proceeds once this one waits."""
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        if line.startswith("It is process"):
            proceed.set()

    convert(request, converter, settings=FAST, report=report)
    return lines


def test_a_waiter_uses_the_conversion_of_the_other(tmp_path: Path) -> None:
    request, proceed = write_checkpoint(tmp_path), threading.Event()
    thread = in_the_background(request, proceed, None)
    lines = wait_for(request, proceed, CopyingConverter(error=AssertionError("converted twice")))
    thread.join()
    assert [line for line in lines if not line.startswith("It is process")] == [
        "Another process is converting, waiting for completion...",
        "Conversion completed by another process",
    ]


@pytest.mark.parametrize("error", [RunError("lm_head.weight"), OSError(errno.EIO, "Input/output error")])
def test_a_waiter_converts_itself_if_the_other_fails(tmp_path: Path, error: Exception) -> None:
    """B1: a waiting job did not check whether the other one had succeeded."""
    request, proceed = write_checkpoint(tmp_path), threading.Event()
    own: list[Path] = []
    thread = in_the_background(request, proceed, error)
    wait_for(request, proceed, CopyingConverter(during=own.append))
    thread.join()
    assert len(own) == 1 and is_converted(request)


def test_waiting_is_bounded(tmp_path: Path) -> None:
    request, proceed = write_checkpoint(tmp_path), threading.Event()
    thread = in_the_background(request, proceed, None)
    with pytest.raises(RunError, match=rf"process {os.getpid()} on .*--max-wait"):
        convert(request, CopyingConverter(), settings=FAST.model_copy(update={"max_wait_s": 0.05}), report=print)
    proceed.set()
    thread.join()


def test_a_process_that_gets_the_lock_after_another_published_uses_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = write_checkpoint(tmp_path)
    from rollyard.launchers.conversion.cache import Versions

    require = Versions.require_own

    def meanwhile(versions: Versions) -> None:
        monkeypatch.setattr(Versions, "require_own", require)
        run(request)

    monkeypatch.setattr(Versions, "require_own", meanwhile)
    _, lines = run(request, CopyingConverter(error=AssertionError("converted twice")))
    assert lines == ["Another process completed conversion, using cached checkpoint"]


KEY = "0123456789abcdef" * 4


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
