"""Checkpoint folders without tensors, a converter that copies files, and a process that converts with it.

    python -m tests.unit.launchers.conversion.fake_conversion FOLDER

Each conversion appends a line to FOLDER/conversions.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from rollyard.launchers.conversion.cache import Contents, ConversionRequest, LockSettings, convert
from rollyard.launchers.conversion.source import ConversionSource
from tests.support.waiting import deadline_s

FAST = LockSettings(heartbeat_s=0.05, expiry_s=2, max_wait_s=deadline_s(), poll_s=0.01)


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

    def __call__(self, source: ConversionSource, target: Path, report: Callable[[str], None]) -> Contents:
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


def convert_into_journal(folder: Path, token: str = "", seconds: float = 1000.0) -> None:
    """Convert in `seconds`, append the lines of the command and the path to FOLDER/lines, and exit."""
    request = ConversionRequest(
        folder / "grpo/step_170/policy/weights",
        folder / "grpo/step_170/config.yaml",
        {"LOG": str(folder / "log")},
        token=token,
    )

    def report(line: str) -> None:
        with (folder / "lines").open("a") as file:
            file.write(f"{line}\n")

    converter = CopyingConverter(folder / "conversions", seconds)
    report(str(convert(request, converter, settings=FAST, report=report)))


if __name__ == "__main__":
    convert_into_journal(Path(sys.argv[1]))
