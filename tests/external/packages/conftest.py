"""One wheel and one virtual environment per Python, shared by all tests of this folder."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.external.packages.building import build, copy_checkout
from tests.external.packages.installation import Installation
from tests.external.packages.pythons import MAIN, VERSIONS, find_python
from tests.modules import ROOT

OPENAI_AGENTS = "openai-agents"
Fresh = Callable[..., Installation]


@dataclass(frozen=True)
class Built:
    """A copy of the checkout in a folder named like the project, and its wheel and sdist."""

    source: Path
    wheel: Path
    sdist: Path


@pytest.fixture(scope="session", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    source = copy_checkout(folder / "rollyard")
    return Built(source, build(source, folder / "dist"), build(source, folder / "dist", "sdist"))


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    """Creates virtual environments. Package versions are those of the lock, so that new releases break no test."""
    constraints = tmp_path_factory.mktemp("constraints") / "constraints.txt"
    lock = (ROOT / "requirements" / "all.lock").read_text()
    pins = re.findall(r"^[A-Za-z0-9._-]+==[^\s\\]+(?: ;[^\\\n]+)?", lock, re.MULTILINE)
    constraints.write_text("\n".join(pins))

    def make(version: str = MAIN) -> Installation:
        return Installation(find_python(version), tmp_path_factory.mktemp("environment") / "venv", constraints)

    return make


@pytest.fixture(scope="session")
def installed(fresh: Fresh, built: Built) -> Callable[[str], Installation]:
    environments: dict[str, Installation] = {}

    def with_python(version: str) -> Installation:
        if version not in environments:
            environments[version] = fresh(version)
            environments[version].install(f"rollyard[math] @ {built.wheel.as_uri()}", OPENAI_AGENTS)
        return environments[version]

    return with_python


@pytest.fixture(scope="session")
def main(installed: Callable[[str], Installation]) -> Installation:
    return installed(MAIN)
