"""A host with an engine: its client, and requests of programs on that host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.waiting import deadline_s

TOKEN = "only-for-this-test-0123456789"
KEY = "sk-only-for-this-test"
USER = 1000

_GET = """
import json, sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[1], headers=json.loads(sys.argv[2]))
try:
    with urllib.request.urlopen(request, timeout=10) as answer:
        print(json.dumps([answer.status, answer.read().decode()]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, error.read().decode()]))
except OSError as error:
    print(json.dumps([0, str(error)]))
"""


@dataclass(frozen=True)
class Host:
    variables: Mapping[str, str]
    process: int
    """A process in the engine's network."""

    def docker(self, *arguments: str, cwd: Path | None = None, **variables: str) -> str:
        """Run the client; return what it prints. Fails the test with it if the exit status is not 0."""
        done = subprocess.run(
            ["docker", *arguments],
            cwd=cwd,
            env={**self.variables, **variables},
            capture_output=True,
            text=True,
            timeout=deadline_s(),
        )
        assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def inspect(self, container: str) -> dict[str, Any]:
        (found,) = json.loads(self.docker("inspect", container))
        return dict(found)

    def get(self, url: str, token: str = "") -> tuple[int, str]:
        """Return status and body; the status is 0 if there is no connection."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        inside = ["nsenter", "--target", str(self.process), "--net", sys.executable, "-S", "-c", _GET]
        status, body = json.loads(subprocess.check_output([*inside, url, json.dumps(headers)]))
        return status, body


def users_folder(folder: Path, files: Mapping[str, str] | None = None) -> Path:
    """Make a folder that belongs to the containers' user, with files that only this user can read."""
    folder.mkdir()
    for name, text in (files or {}).items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o400)
    for path in (folder, *folder.iterdir()):
        os.chown(path, USER, USER)
    return folder


def secrets_folder(folder: Path) -> Path:
    return users_folder(folder, {"rollyard_token": f"{TOKEN}\n", "policy_api_key": f"{KEY}\n"})


def confinement(host: Host, container: str) -> dict[str, Any]:
    """Return what the kernel and the engine hold a running container to."""
    found = host.inspect(container)
    lines = host.docker("exec", container, "cat", "/proc/1/status").splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    limits = found["HostConfig"]
    return {
        "user": {*status["Uid"], *status["Gid"]},
        "capabilities": {*status["CapPrm"], *status["CapEff"], *status["CapBnd"]},
        "no new privileges": status["NoNewPrivs"],
        "seccomp": status["Seccomp"],
        "read-only": limits["ReadonlyRootfs"],
        "limited": bool(limits["NanoCpus"]) and bool(limits["Memory"]),
        "secrets shown": [secret for secret in (TOKEN, KEY) if secret in json.dumps(found)],
    }


CONFINED = {
    "user": {str(USER)},
    "capabilities": {"0" * 16},
    "no new privileges": ["1"],
    "seccomp": ["2"],
    "read-only": True,
    "limited": True,
    "secrets shown": [],
}
