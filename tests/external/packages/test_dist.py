"""`make dist`: the same bits wherever it is built, and bills of materials that list what the lock does."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.external.packages.building import copy_checkout
from tests.modules import ROOT

RELEASE = ROOT / ".venv-release" / "bin" / "python"
IDENTITY = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")


def make_dist(source: Path, **environment: str) -> dict[str, bytes]:
    command = [str(RELEASE), "requirements/dist.py"]
    subprocess.run(command, cwd=source, env={**os.environ, **environment}, check=True, stdout=subprocess.DEVNULL)
    files = sorted(path for path in (source / "dist").rglob("*") if path.is_file())
    return {path.relative_to(source / "dist").as_posix(): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose only commit is the checkout with its changes."""
    folder = copy_checkout(tmp_path_factory.mktemp("dist") / "rollyard")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "--no-verify", "-m", "all")):
        subprocess.run(["git", *IDENTITY, *words], cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def dist(source: Path) -> dict[str, bytes]:
    return make_dist(source)


@pytest.mark.smoke
def test_another_folder_umask_time_zone_locale_and_owner_give_the_same_bits(
    source: Path, dist: dict[str, bytes], tmp_path: Path
) -> None:
    other = tmp_path / "a b" / "ünicode"
    subprocess.run(["git", "clone", "-q", source, other], check=True, umask=0o077)
    for path in other.rglob("*"):
        if ".git" not in path.parts:
            os.utime(path, (915_148_800, 915_148_800), follow_symlinks=False)
            if os.geteuid() == 0:
                os.chown(path, 65534, 65534, follow_symlinks=False)
    (other / "records" / "untracked.py").touch()
    environment = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "7", "SOURCE_DATE_EPOCH": "1"}
    again = make_dist(other, **environment)
    assert again.keys() == dist.keys()
    assert [name for name in dist if again[name] != dist[name]] == []


def test_an_sdist_names_no_owner_and_the_time_of_the_commit(source: Path, dist: dict[str, bytes]) -> None:
    command = ["git", "log", "-1", "--format=%ct"]
    epoch = int(subprocess.run(command, cwd=source, capture_output=True, check=True).stdout)
    (path,) = (source / "dist").glob("*.tar.gz")
    with tarfile.open(path) as packed:
        owners = {(member.uid, member.gid, member.uname, member.gname, member.mtime) for member in packed}
    assert owners == {(0, 0, "", "", epoch)}


def bill(dist: dict[str, bytes], name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(dist[f"sbom/{name}.cdx.json"])
    return content


def test_a_bill_of_materials_lists_what_the_lock_does_with_hashes_and_licences(dist: dict[str, bytes]) -> None:
    components = bill(dist, "core")["components"]
    lock = (ROOT / "requirements" / "all.lock").read_text()
    names = {component["name"] for component in components}
    assert {"aiohttp", "multidict", "pydantic-core"} <= names and not {"pytest", "boto3", "setuptools"} & names
    for component in components:
        pin = f"{component['name']}=={component['version']}"
        assert f"\n{pin} " in f"\n{lock}" and component["licenses"], pin
        (files,) = component["externalReferences"]
        assert files["hashes"] and all(f"sha256:{file['content']}" in lock for file in files["hashes"])


def test_the_bill_of_an_extra_is_that_of_the_core_and_more(dist: dict[str, bytes]) -> None:
    core, aws = ({component["purl"] for component in bill(dist, name)["components"]} for name in ("core", "aws"))
    assert core < aws and any("boto3" in purl for purl in aws - core)
