"""Documentation pages as a reader follows them: files to write, commands to type, programs to run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from rollyard.services.io.search_path import INSTALLED

_FILE = re.compile(r"`(\S+/\S+\.\w+)`[^\n`]*:\n\n```\w+\n(.*?)```", re.DOTALL)


def page(name: str) -> str:
    return (INSTALLED / "docs" / name).read_text()


def sections(text: str) -> dict[str, str]:
    """Each second-level section's text by its heading."""
    return {part.partition("\n")[0]: part for part in text.split("\n## ")[1:]}


def files(text: str) -> dict[str, str]:
    """File contents by path: each block below a line that ends with a path in backquotes."""
    found: dict[str, str] = dict(_FILE.findall(text))
    return found


def write_files(text: str, folder: Path) -> None:
    for path, content in files(text).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)


def commands(text: str) -> list[list[str]]:
    """The lines of the bash blocks, split into words as a shell does."""
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    split = [shlex.split(re.sub(r"^(?:[A-Z_]+=\S* )+", "", line), comments=True) for line in lines]
    return [words for words in split if words]


def programs(text: str) -> list[str]:
    """The Python blocks."""
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
