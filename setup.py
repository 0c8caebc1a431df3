"""Builds the package. The metadata is in pyproject.toml; this file repairs links and removes old builds.

`src/rollyard` contains relative links to the folders of the repository. Archives that were unpacked without support for
links (pip and uv unpack .zip files in this way) contain small text files instead, and a build would produce a package
without these folders.

setuptools includes everything in `build/lib` in a wheel, even files of an earlier build. In a checkout that was
installed before the package was renamed to rollyard, these include a top-level `agents`, which is the name of
openai-agents' package.
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
