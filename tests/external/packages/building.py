"""Copies of the checkout, and the wheels and source archives built from them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from tests.external.packages.installation import tracked
from tests.modules import ROOT


def copy_checkout(folder: Path, *, links: bool = True) -> Path:
    """Copy the checkout with its changes; without `links` like an archive unpacked without symlink support."""
    for name in tracked():
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink() and not links:
            target.write_text(str(source.readlink()))
        else:
            shutil.copy2(source, target, follow_symlinks=False)
    return folder


def build(source: Path, output: Path, kind: str = "wheel") -> Path:
    """Build a wheel or an sdist of `source` with the setuptools of this environment, without a package index."""
    output.mkdir(parents=True, exist_ok=True)
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(output)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return output / done.stdout.splitlines()[-1]


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack an sdist and return its only folder."""
    with tarfile.open(archive) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # Python has it since 3.11.4
        packed.extractall(folder)
    (unpacked,) = folder.iterdir()
    return unpacked


def contents(wheel: Path) -> dict[str, bytes]:
    """Files of a wheel without its metadata."""
    with zipfile.ZipFile(wheel) as packed:
        return {name: packed.read(name) for name in packed.namelist() if ".dist-info/" not in name}
