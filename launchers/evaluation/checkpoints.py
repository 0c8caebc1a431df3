"""Finds the checkpoints of a training run, in a folder or in S3: which are complete, and each of them as it appears."""

from __future__ import annotations

import contextlib
import re
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import orjson

from rollyard.records import s3
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.safetensors_headers import read_header


@dataclass(frozen=True)
class CheckpointWatch:
    source: Source
    staged: Path
    """Folder for links to checkpoints whose file names vLLM does not accept."""
    is_pending: Callable[[str], bool]
    evaluate: Callable[[str, Path], None]
    """Evaluates a checkpoint, given its name and a folder that vLLM can load. It records success and failure itself."""
    print_line: Callable[[str], None] = lambda text: None

    def run(self, poll_s: float, stopped: Event, *, once: bool) -> None:
        """Evaluate complete checkpoints until `stopped` is set; with `once`, the existing ones."""
        reported: dict[str, str] = {}

        def report(topic: str, message: str) -> None:
            if reported.get(topic) != message:
                reported[topic] = message
                self.print_line(message)

        polls = 0
        while not stopped.is_set():
            try:
                names = self.source.names()
            except RunError as error:
                if polls == 0:
                    raise OperatorError(str(error)) from error
                report("", f"{error}; trying again in {poll_s:.0f} s")
            else:
                interval = "" if once else f", checked every {poll_s:.0f} s"
                report("", f"{len(names)} checkpoints at {self.source.place}{interval}")
                for name in names:
                    if stopped.is_set():
                        break
                    if self.is_pending(name):
                        self._evaluate(name, report)
            polls += 1
            if once:
                return
            stopped.wait(poll_s)

    def _evaluate(self, name: str, report: Callable[[str, str], None]) -> None:
        try:
            folder, missing = self.source.fetch(name)
            if folder is None:
                report(name, f"{name} is not complete yet: {missing}")
                return
            loaded = stage(folder, self.staged / name)
        except FileNotFoundError:
            report(name, f"{name} no longer exists")
            return
        except (OSError, RunError) as error:
            report(name, f"{name} cannot be read: {error}")
            return
        self.evaluate(name, loaded)
        shutil.rmtree(self.staged / name, ignore_errors=True)
        self.source.done(name)


@dataclass(frozen=True)
class LocalSource:
    root: Path
    pattern: str = "*"
    marker: str | None = None
    """File that the training program writes into a checkpoint last; None: the weights' headers decide."""

    @property
    def place(self) -> str:
        return f"{self.root / self.pattern}" + ("" if self.root.is_dir() else f" ({self.root} does not exist)")

    def names(self) -> list[str]:
        """Symbolic links to a sibling, such as `latest`, are skipped, because they are not separate checkpoints."""
        root = self.root.resolve()
        try:
            found = [path for path in root.glob(self.pattern) if path.is_dir() and not unfinished(path.name)]
        except OSError as error:
            raise RunError(f"{self.root} cannot be read: {error.strerror}") from error
        return _by_step(path.name for path in found if not (path.is_symlink() and path.resolve().parent == root))

    def address(self, name: str) -> str:
        return str(self.root.resolve() / name)

    def fetch(self, name: str) -> tuple[Path | None, str]:
        folder = self.root / name
        missing = find_missing_part(folder, self.marker)
        return (None, missing) if missing else (folder, "")

    def done(self, name: str) -> None:
        """Keep the checkpoint, as it is no copy."""


class S3Source:
    """Checkpoints under a prefix in S3, copied to `folder` one at a time."""

    def __init__(self, address: str, folder: Path, pattern: str = "*", marker: str | None = None) -> None:
        """Raises OperatorError if boto3 is not installed or `address` is not a URL such as s3://bucket/prefix."""
        self._bucket, prefix = s3.split(address)
        self._prefix = prefix.rstrip("/") + "/"
        self._folder = folder
        self._pattern = pattern
        self._marker = marker
        self._client = s3.client(address)

    @property
    def place(self) -> str:
        return self.address(self._pattern)

    def names(self) -> list[str]:
        with self._convert_errors():
            found = [
                common["Prefix"].removeprefix(self._prefix).rstrip("/")
                for page in self._pages(self._prefix, Delimiter="/")
                for common in page.get("CommonPrefixes", ())
            ]
        return _by_step(name for name in found if Path(name).match(self._pattern) and not unfinished(name))

    def address(self, name: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}{name}"

    def fetch(self, name: str) -> tuple[Path | None, str]:
        """The weights are copied last, after checking that all files exist. An interrupted copy is discarded."""
        complete, partial = self._folder / name, self._folder / f"{name}.partial"
        if complete.is_dir():
            return complete, ""
        shutil.rmtree(partial, ignore_errors=True)
        try:
            with self._convert_errors():
                missing = self._copied(f"{self._prefix}{name}/", partial)
            if not missing:
                partial.rename(complete)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return (None, missing) if missing else (complete, "")

    def done(self, name: str) -> None:
        shutil.rmtree(self._folder / name, ignore_errors=True)

    def _copied(self, prefix: str, target: Path) -> str:
        keys = [item["Key"] for page in self._pages(prefix) for item in page.get("Contents", ())]
        files = {key: target / key.removeprefix(prefix) for key in keys if not key.endswith("/")}
        weights = {key: file for key, file in files.items() if file.name.endswith(WEIGHTS)}
        for key, file in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            if key in weights:
                file.touch()
            else:
                self._client.download_file(self._bucket, key, str(file))
        if absent := find_absent_file(target, self._marker):
            return absent
        for key, file in weights.items():
            self._client.download_file(self._bucket, key, str(file))
        return find_missing_part(target, self._marker)

    def _pages(self, prefix: str, **more: str) -> Any:
        return self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix, **more)

    @contextlib.contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Convert botocore's errors, whose classes are created at run time, to RunError."""
        try:
            yield
        except Exception as error:
            raise RunError(f"s3://{self._bucket}/{self._prefix} cannot be read: {error}") from error


Source = LocalSource | S3Source
"""Where a training run saves checkpoints. `fetch` returns a local folder, or None and what the checkpoint lacks."""


def _by_step(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (-1 if (step := step_of(name)) is None else step, name))


_STEP = re.compile(r"(?:steps?|checkpoint|ckpt|iter|iteration|epoch)[-_=.]?(\d+)", re.IGNORECASE)
_ENDS = re.compile(r"(?:^|[-_])(\d+)$")
_UNFINISHED = re.compile(r"\.|tmp[-_.]|.*[-_.](?:tmp|temp|partial|incomplete|writing)$", re.IGNORECASE)
_ONE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLED = "pytorch_model.bin"
_PICKLED_INDEX = "pytorch_model.bin.index.json"
WEIGHTS = (".safetensors", ".bin")


def step_of(name: str) -> int | None:
    """Return the training step in a name: 40 in `run_step40`, `checkpoint-40`, `40`; None for `Qwen3-1.7B`, `final`."""
    found = _STEP.findall(name) or _ENDS.findall(name)
    return int(found[-1]) if found else None


def unfinished(name: str) -> bool:
    """Return whether the name is that of a checkpoint that is still being written: `tmp-checkpoint-9`, `.step_9`."""
    return _UNFINISHED.match(name) is not None


def find_missing_part(folder: Path, marker: str | None = None) -> str:
    """Return why a checkpoint is incomplete; empty if it is complete.

    A complete checkpoint has a config, and each weight file has the length that is stated in its header. This is not
    yet the case while a checkpoint is being written or copied. `marker`: a file that must also exist, because the
    training program writes it last.
    """
    if absent := find_absent_file(folder, marker):
        return absent
    try:
        orjson.loads((folder / "config.json").read_bytes())
    except ValueError:
        return "config.json is incomplete"
    for file in _shards(folder):
        if file.suffix == ".bin":
            if not zipfile.is_zipfile(file):  # the zip directory is written last
                return f"{file.name} is incomplete"
        else:
            try:
                read_header(file)
            except (OSError, ValueError) as error:
                return str(error)
    return ""


def find_absent_file(folder: Path, marker: str | None = None) -> str:
    """Return which file of a checkpoint is missing; empty if all files exist, even if some are incomplete."""
    if marker is not None and not (folder / marker).exists():
        return f"{marker} is missing"
    if not (folder / "config.json").is_file():
        return "config.json is missing"
    files = _shards(folder)
    if not files:
        return "the weights are missing"
    return next((f"{file.name} is missing" for file in files if not file.is_file()), "")


def stage(folder: Path, target: Path) -> Path:
    """Return a folder that vLLM can load: `folder`, or `target` with links to its files.

    Links are needed if the index does not match the only weight file. Some training code saves `model.safetensors`
    next to the index of the original model.
    """
    names = _named_by(folder / _INDEX)
    if not (folder / _INDEX).is_file() or not (folder / _ONE).is_file() or all((folder / n).is_file() for n in names):
        return folder
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for file in folder.iterdir():
        if file.name != _INDEX:
            (target / file.name).symlink_to(file.resolve())
    return target


def _shards(folder: Path) -> list[Path]:
    """Return the weight files: those listed in the index, or a single file even if the index lists a different one."""
    for one, index in ((_ONE, _INDEX), (_PICKLED, _PICKLED_INDEX)):
        named = [folder / name for name in _named_by(folder / index)]
        if len(named) <= 1 and (folder / one).is_file():
            return [folder / one]
        if named:
            return named
    return []


def _named_by(index: Path) -> list[str]:
    try:
        weights = orjson.loads(index.read_bytes())["weight_map"].values()
        return sorted({Path(str(name)).name for name in weights})
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [f"the file list in {index.name}"]  # the index is incomplete or invalid
