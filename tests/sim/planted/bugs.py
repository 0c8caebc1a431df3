"""The planted bugs: `NN_name.patch` says in its first lines what it breaks and since when, and then how."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.modules import ROOT

FOLDER = Path(__file__).parent
_HEAD = re.compile(r"Breaks: (?P<breaks>.+)\.\nIntroduced: (?P<introduced>.+)\.\n\n")
_CHANGED = re.compile(r"^\+\+\+ b/(.+)$", re.MULTILINE)


class Outdated(Exception):
    """A patch has no valid head, or does not apply to the product any more."""


@dataclass(frozen=True)
class Bug:
    name: str
    breaks: str
    introduced: str
    """`planted`, or until which commit the product had it."""
    files: tuple[str, ...]
    """What the patch changes."""

    @classmethod
    def read(cls, path: Path) -> Bug:
        """Raises Outdated if the patch does not say what it breaks."""
        text = path.read_text(encoding="utf-8")
        if (head := _HEAD.match(text)) is None:
            raise Outdated(f"{path.name} begins with {text[:80]!r}; expected `Breaks: ...` and `Introduced: ...`")
        return cls(path.stem, head["breaks"], head["introduced"], tuple(_CHANGED.findall(text)))

    def plant(self, folder: Path) -> None:
        """Make the folder a tree of the product with this bug. Raises Outdated if the patch does not apply.

        What the patch does not change are links, except for `src`: its links lead to the folders beside it.
        """
        copied = {"src", *(file.partition("/")[0] for file in self.files)}
        for path in ROOT.iterdir():
            if path.name in copied:
                shutil.copytree(path, folder / path.name, symlinks=True)
            elif path.name != ".git":
                (folder / path.name).symlink_to(path)
        command = ["git", "apply", str(FOLDER / f"{self.name}.patch")]
        alone = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
        applied = subprocess.run(command, cwd=folder, env=alone, capture_output=True, text=True, check=False)
        if applied.returncode:
            raise Outdated(f"{self.name}.patch does not apply; plant the bug anew:\n{applied.stderr}")


def all_bugs() -> list[Bug]:
    return [Bug.read(path) for path in sorted(FOLDER.glob("*.patch"))]
