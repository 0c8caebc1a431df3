"""Builds the package. Everything is declared in pyproject.toml; this file repairs links and clears old builds.

The folders of the repository are reached through relative links in `src/rollyard`. Archives that were unpacked without
link support (pip and uv unpack a .zip that way) hold small text files in their place, and a build would install a
package without them.

setuptools puts everything in `build/lib` into a wheel, also what an earlier build left there. A checkout that was
installed before the package was called rollyard holds a top-level `agents` in it, which is openai-agents' name.
"""

import shutil
from pathlib import Path

from setuptools import setup

shutil.rmtree(Path(__file__).parent / "build" / "lib", ignore_errors=True)
for entry in (Path(__file__).parent / "src" / "rollyard").iterdir():
    if entry.is_file() and not entry.is_symlink() and not entry.suffix:
        target = entry.read_text().strip()
        entry.unlink()
        entry.symlink_to(target)

setup()
