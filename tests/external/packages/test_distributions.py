from __future__ import annotations

import re
import shutil
import tarfile
from pathlib import Path

import pytest

from tests.external.packages.building import build, contents, copy_checkout, unpack
from tests.external.packages.conftest import Built
from tests.external.packages.installation import tracked
from tests.modules import ROOT


def expected() -> dict[str, bytes]:
    """Path -> content of each file below the links of src/rollyard and next to them."""
    package = ROOT / "src" / "rollyard"
    folders = [entry.name for entry in package.iterdir() if entry.is_symlink()]
    own = [name.removeprefix("src/") for name in tracked("src") if not (ROOT / name).is_symlink()]
    linked = [f"rollyard/{name}" for name in tracked(*folders)]
    return {name: (ROOT / "src" / name).read_bytes() for name in (*own, *linked)}


@pytest.mark.smoke
def test_a_wheel_contains_exactly_the_files_of_the_package(built: Built) -> None:
    packed = contents(built.wheel)
    assert packed.keys() ^ expected().keys() == set()
    assert packed == expected()


def test_a_wheel_has_one_top_level_name(built: Built) -> None:
    assert {name.partition("/")[0] for name in contents(built.wheel)} == {"rollyard"}


def test_an_sdist_contains_only_the_package_and_its_build_files(built: Built) -> None:
    with tarfile.open(built.sdist) as packed:
        inside = [name.partition("/")[2] for name in packed.getnames()]
    allowed = {"", "src", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg", "setup.py"}
    assert {name.partition("/")[0] for name in inside} <= allowed


def test_a_wheel_of_the_sdist_equals_that_of_the_checkout(built: Built, tmp_path: Path) -> None:
    source = unpack(built.sdist, tmp_path / "unpacked")
    assert contents(build(source, tmp_path / "dist")) == contents(built.wheel)


def test_an_archive_unpacked_without_symlinks_gives_the_same_wheel(built: Built, tmp_path: Path) -> None:
    source = copy_checkout(tmp_path / "rollyard-main", links=False)
    assert not (source / "src/rollyard/services").is_symlink()
    assert contents(build(source, tmp_path / "dist")) == contents(built.wheel)


def test_leftovers_of_an_earlier_build_are_not_in_the_wheel(built: Built, tmp_path: Path) -> None:
    source = copy_checkout(tmp_path / "checkout")
    for old in ("agents", "rollyard/services"):
        (source / "build/lib" / old).mkdir(parents=True)
        (source / "build/lib" / old / "removed.py").touch()
    assert contents(build(source, tmp_path / "dist")) == contents(built.wheel)


def test_the_files_copied_into_the_docker_image_give_the_same_wheel(built: Built, tmp_path: Path) -> None:
    copied = re.findall(r"^COPY (.+) \./?$|^COPY (\S+) \2$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    (tmp_path / "image").mkdir()
    for name in " ".join(one or other for one, other in copied).split():
        place = built.source / name
        if place.is_dir():
            shutil.copytree(place, tmp_path / "image" / name, symlinks=True)
        else:
            shutil.copy(place, tmp_path / "image" / name)
    assert contents(build(tmp_path / "image", tmp_path / "dist")) == contents(built.wheel)
