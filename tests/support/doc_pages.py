"""Documentation pages as a reader follows them: files to write, commands to type, programs to run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from rollyard.records.data_files import INSTALLED

_FILE = re.compile(r"`(\S+/\S+\.\w+)`[^\n`]*:\n\n```\w+\n(.*?)```", re.DOTALL)


def page(name: str) -> str:
    return (INSTALLED / "docs" / name).read_text()


def sections(text: str) -> dict[str, str]:
    return {part.partition("\n")[0]: part for part in text.split("\n## ")[1:]}


def files(text: str) -> dict[str, str]:
    """File contents by path: each block below a line that ends with a path in backquotes."""
    found: dict[str, str] = dict(_FILE.findall(text))
    return found


def write_files(text: str, folder: Path) -> None:
    for path, content in files(text).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)


def blocks(text: str) -> list[str]:
    return re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def command_lines(text: str) -> list[str]:
    """The commands of the bash blocks, without line breaks except in quotes."""
    found, pending = [], ""
    for line in "\n".join(blocks(text)).replace("\\\n", " ").splitlines():
        pending += line
        try:
            if shlex.split(pending, comments=True):
                found.append(pending)
        except ValueError:  # a quote that ends on a later line
            pending += "\n"
            continue
        pending = ""
    assert not pending, pending
    return found


def commands(text: str) -> list[list[str]]:
    return [shlex.split(re.sub(r"^(?:[A-Z_]+=\S* )+", "", line), comments=True) for line in command_lines(text)]


def programs(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
