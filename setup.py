"""Builds the package. Everything is declared in pyproject.toml; this file repairs links.

The folders of the repository are reached through relative links in `src/rollyard`. Archives that were unpacked without
link support (pip and uv unpack a .zip that way) hold small text files in their place, and a build would install a
package without them.
"""

from pathlib import Path

from setuptools import setup

for entry in (Path(__file__).parent / "src" / "rollyard").iterdir():
    if entry.is_file() and not entry.is_symlink() and not entry.suffix:
        target = entry.read_text().strip()
        entry.unlink()
        entry.symlink_to(target)

setup()
