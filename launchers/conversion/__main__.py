"""The command that runs inside a conversion job. The last line of its output is the path of the result.

python -m rollyard.launchers.conversion --dcp-ckpt-path D --dcp-config C [--hf-ckpt-path H]
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Event
from types import FrameType
from typing import TextIO

from rollyard.launchers.conversion.cache import Contents, ConversionRequest, LockSettings, convert
from rollyard.launchers.conversion.source import ConversionSource
from rollyard.records.errors import OperatorError
from rollyard.records.optional import EXTRAS, require
from rollyard.records.script import ScriptParser, exit_status

NAME = "python -m rollyard.launchers.conversion"


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Convert a checkpoint once, or use the conversion that exists. Returns the exit status."""
    options = _parser().parse_args(arguments)
    for flag, value in (("--dcp-ckpt-path", options.dcp_ckpt_path), ("--dcp-config", options.dcp_config)):
        if not value:
            raise OperatorError(f"{flag} is required")
    report = partial(_report, sys.stderr if options.print_path else sys.stdout)
    request = ConversionRequest(
        options.dcp_ckpt_path,
        options.dcp_config,
        environ or {},
        options.hf_ckpt_path,
        token=options.force_token or (uuid.uuid4().hex[:12] if options.force_conversion else ""),
    )
    stopped = Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        stopped.set()
        raise KeyboardInterrupt

    def make(source: ConversionSource, target: Path, report: Callable[[str], None]) -> Contents:
        def checked(line: str) -> None:
            if stopped.is_set():
                raise KeyboardInterrupt
            report(line)

        try:
            return _to_hugging_face(source, target, checked)
        except Exception:
            if stopped.is_set():  # torch goes on if an import of its own is interrupted, and may fail later
                raise KeyboardInterrupt from None
            raise

    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, interrupt)  # the end of the job: release the lock, remove what is incomplete
    settings = LockSettings(max_wait_s=options.max_wait)
    print(convert(request, make, settings=settings, report=report))
    return 0


def _to_hugging_face(source: ConversionSource, target: Path, report: Callable[[str], None]) -> Contents:
    """Import torch only if something is to be converted: that takes seconds on a shared file system."""
    for package in EXTRAS["convert"].packages:
        require(package, "convert", "the conversion of DCP checkpoints")
    module = import_module("rollyard.launchers.conversion.huggingface")
    contents: Contents = module.HuggingFaceConverter()(source, target, report)
    return contents


def _parser() -> argparse.ArgumentParser:
    parser = ScriptParser(
        prog=NAME,
        description="Convert a DCP checkpoint of NeMo-RL to Hugging Face format, once for each content.",
        allow_abbrev=False,
    )
    parser.add_argument("--dcp-ckpt-path", metavar="D", help="folder with .metadata, such as …/policy/weights/")
    parser.add_argument("--dcp-config", "--config", metavar="C", help="config.yaml of the checkpoint")
    parser.add_argument("--hf-ckpt-path", metavar="H", help="folder of the result; default: a folder in $LOG/nemo-rl")
    force = parser.add_mutually_exclusive_group()
    force.add_argument("--force-conversion", action="store_true", help="convert even if a conversion exists")
    force.add_argument(
        "--force-token", metavar="T", default="", help="as above, but once for all processes with token T"
    )
    wait = LockSettings().max_wait_s
    parser.add_argument(
        "--max-wait", metavar="S", type=float, default=wait, help=f"wait for others (default: {wait} s)"
    )
    parser.add_argument("--print-path", action="store_true", help="print only the path; messages go to standard error")
    return parser


def _report(stream: TextIO, line: str) -> None:
    stream.write(f"{line}\n")  # in one piece: the tasks of a job may share their output
    stream.flush()


if __name__ == "__main__":
    sys.exit(exit_status(NAME, lambda: main(environ=os.environ)))
