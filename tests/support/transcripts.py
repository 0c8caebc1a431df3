"""Transcripts of commands: files of `$ ng_... ` lines with what each of them prints, which `make snapshots` rewrites.

A line that starts with `#` is a comment, `$` starts a command line, and the indented lines below it are its standard
output, its standard error (`!`) and its exit status, if that is not 0. The other tools for such files (cram, scrut) run
a shell; these commands run in this process, because the start of one takes a second.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

import pytest

from rollyard.records.search_path import INSTALLED
from tests.support.commands import Finished, in_this_process

COLUMNS = 120
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")
_VARYING = (
    (re.compile(re.escape(f"rollyard {version('rollyard')}")), "rollyard VERSION"),
    (re.compile(r"(?<![\d.])20\d\d(-\d\d){2}-\d{6}\b"), "TIME"),
    (re.compile(r"(?<![\d.])( ?) *\d+(\.\d+)?( rollouts/)?( ?)s\b"), r"\1N\3\4s"),
    (re.compile(r"\brun [0-9a-f]{8}\b"), "run ID"),
    (re.compile(r"(127\.0\.0\.1|localhost):\d{5}\b"), r"\1:PORT"),
    (re.compile(r"\(\d+\.\d MB\)"), "(N MB)"),
)
"""Patterns of what differs between two runs, and what is shown instead."""
_UNSET = ("LOG", "ACCOUNT", "CON", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "AWS_PROFILE", "OPENAI_API_KEY")
"""Variables that commands read, and that a test run may have."""


def rewritten(text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Run the command lines of a transcript, one after another in `folder`, and return it with what they print now."""
    parts: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            parts.append(f"{line}\n")
        elif line.startswith("$ "):
            parts.append(f"{line}\n{_printed(line[2:], folder, capsys)}\n")
        else:
            assert not line or line.startswith("  "), f"neither a comment nor a command line nor its output: {line}"
    return "".join(parts)


def _printed(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    words = shlex.split(line)
    variables = {}
    while _VARIABLE.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    done = _run(words, variables, folder, capsys)
    lines = [*_marked("    ", done.out, folder), *_marked("  ! ", done.err, folder)]
    return "".join([*lines, f"  exit status {done.status}\n" if done.status else ""])


def _run(words: list[str], variables: Mapping[str, str], folder: Path, capsys: pytest.CaptureFixture[str]) -> Finished:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in _UNSET:
            patch.delenv(name, raising=False)
        for name, value in {"COLUMNS": str(COLUMNS), **variables}.items():
            patch.setenv(name, value)
        return in_this_process(*words, capsys=capsys)


def _marked(mark: str, text: str, folder: Path) -> Iterator[str]:
    for found, shown in ((str(folder), "FOLDER"), (sys.executable, "PYTHON"), (str(INSTALLED), "ROLLYARD")):
        text = text.replace(found, shown)
    for pattern, shown in _VARYING:
        text = pattern.sub(shown, text)
    for line in text.splitlines():
        yield f"{mark}{line}".rstrip() + "\n"
