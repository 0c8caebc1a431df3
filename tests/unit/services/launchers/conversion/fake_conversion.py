"""Checkpoint folders without tensors, a converter that copies files, and a process that converts with it.

    python -m tests.unit.services.launchers.conversion.fake_conversion FOLDER [TOKEN] [SECONDS] [PROCESSES]

prints the lines of the command and the path. Each conversion appends a line to FOLDER/conversions. Several processes
are forked, so that the imports, which take longest, happen once.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from rollyard.services.errors import RollyardError
from rollyard.services.launchers.conversion import ConversionRequest, convert
from rollyard.services.launchers.conversion.lock import LockSettings
from rollyard.services.launchers.conversion.manifest import Contents
from rollyard.services.launchers.conversion.source import Source

FAST = LockSettings(heartbeat_s=0.05, expiry_s=2, max_wait_s=60, poll_s=0.01)


def write_checkpoint(folder: Path, content: bytes = b"weights") -> ConversionRequest:
    """Write the files of a checkpoint of step 170; the cache is FOLDER/log."""
    weights = folder / "grpo" / "step_170" / "policy" / "weights"
    weights.mkdir(parents=True, exist_ok=True)
    (weights / ".metadata").write_bytes(b"metadata")
    for rank in range(2):
        (weights / f"__{rank}_0.distcp").write_bytes(content)
    config = folder / "grpo" / "step_170" / "config.yaml"
    config.write_text(yaml.safe_dump({"policy": {"model_name": "some/model"}}))
    return ConversionRequest(weights, config, {"LOG": str(folder / "log")})


@dataclass
class CopyingConverter:
    """Writes the data files of the checkpoint, slowly if asked to."""

    journal: Path | None = None
    seconds: float = 0
    error: BaseException | None = None
    during: Callable[[Path], object] = lambda folder: None

    def __call__(self, source: Source, target: Path, report: Callable[[str], None]) -> Contents:
        if self.journal:
            with self.journal.open("a") as file:
                file.write(f"{os.getpid()}\n")
        for name in source.files:
            (target / name.lstrip(".")).write_bytes((source.checkpoint / name).read_bytes())
            time.sleep(self.seconds / len(source.files))
        self.during(target)
        if self.error:
            raise self.error
        return Contents(tensors=len(source.files))


def convert_here(folder: Path, token: str, seconds: float) -> int:
    request = ConversionRequest(
        folder / "grpo/step_170/policy/weights",
        folder / "grpo/step_170/config.yaml",
        {"LOG": str(folder / "log")},
        token=token,
    )
    try:
        path = convert(request, CopyingConverter(folder / "conversions", seconds), settings=FAST, report=report)
    except RollyardError as error:
        report(str(error))
        return 1
    report(str(path))
    return 0


def report(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # at once: several processes print


def main() -> int:
    folder, *rest = sys.argv[1:]
    token, seconds, processes = [*rest, *("", "0", "1")[len(rest) :]]
    children = []
    for _ in range(int(processes) - 1):
        if not (child := os.fork()):
            os._exit(convert_here(Path(folder), token, float(seconds)))
        children.append(child)
    statuses = [convert_here(Path(folder), token, float(seconds))]
    statuses += [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main())
