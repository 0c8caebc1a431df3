"""An engine of its own, in a network of its own, with the image of the Dockerfile. Without dockerd, tests skip."""

from __future__ import annotations

import ensurepip
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollyard.records.data_files import INSTALLED
from tests.external.deploy.host import Host
from tests.external.harbor.engine import CAN_START, private_engine
from tests.support.boxes import TEST_IMAGE

_IN_A_NETWORK = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$0" "$@"', "dockerd"]


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    compose = Path(sys.executable).with_name("docker-compose")
    if not (CAN_START and shutil.which("ip") and compose.exists()):
        pytest.skip("needs root, dockerd, ip (apt-get install docker.io iproute2) and make test-deploy")
    version = "import sys; print(*sys.version_info[:2])"  # the image's: pip downloads packages for ours
    if len({subprocess.check_output([python, "-c", version]) for python in ("/usr/bin/python3", sys.executable)}) > 1:
        pytest.skip("needs make test-deploy with the version of Python that is /usr/bin/python3")
    folder = tmp_path_factory.mktemp("client")
    (folder / "cli-plugins").mkdir()
    (folder / "cli-plugins/docker-compose").symlink_to(compose)
    wheels = _wheels(tmp_path_factory.mktemp("base"))
    with private_engine(_IN_A_NETWORK) as (variables, daemon):
        host = Host({**os.environ, **variables, "DOCKER_CONFIG": str(folder), "DOCKER_BUILDKIT": "0"}, daemon.pid)
        host.docker("build", "--quiet", "--tag", "base", str(wheels))
        host.docker("build", "--quiet", "--build-arg", "BASE=base", "--tag", "rollyard", str(INSTALLED))
        yield host


def _wheels(folder: Path) -> Path:
    """Make the context of a base image with this host's Python, and the packages that the Dockerfile installs.

    Debian splits ensurepip and its wheels off from Python: the image gets those of this process and of the lock.
    """
    chosen = (INSTALLED / "Dockerfile").read_text().partition("subset.py ")[2].partition(" >")[0].split()
    requirements = subprocess.check_output([sys.executable, INSTALLED / "requirements/subset.py", *chosen], text=True)
    own = re.search(r"^pip==.*\n(?: .*\n)+", (INSTALLED / "requirements/all.lock").read_text(), re.MULTILINE)
    assert own, "all.lock has pip, which pip-audit requires"
    (folder / "requirements.txt").write_text(requirements + own[0])
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    subprocess.run([*pip, "--requirement", folder / "requirements.txt", "--dest", folder / "wheels"], check=True)
    shutil.copytree(Path(ensurepip.__file__).parent, folder / "ensurepip")
    target = "os.path.dirname(os.__file__) + '/ensurepip'"
    (folder / "Dockerfile").write_text(
        f"FROM {TEST_IMAGE}\nCOPY wheels /usr/share/python-wheels\nCOPY ensurepip /ensurepip\n"
        f"RUN python3 -c \"import os, shutil; shutil.copytree('/ensurepip', {target}, dirs_exist_ok=True)\"\n"
        "ENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/usr/share/python-wheels\n"
    )
    return folder
