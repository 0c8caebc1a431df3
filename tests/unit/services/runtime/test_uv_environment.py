from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.records.errors import OperatorError
from rollyard.services.config.run_config import ForeignProgram
from rollyard.services.runtime.foreign_launcher import install, requirement_lines

FAKE_UV = """#!/bin/sh
echo "$@" >> "{log}"
case "$1" in
  venv) for last; do :; done; mkdir -p "$last/bin"; touch "$last/bin/python" ;;
  pip) cat >> "{log}"; {ending} ;;
esac
"""


def fake_uv(folder: Path, ending: str = "exit 0") -> dict[str, str]:
    """Create a program `uv` that records its arguments and its input. Return the environment that finds it."""
    uv = folder / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    uv.write_text(FAKE_UV.format(log=folder / "log", ending=ending))
    uv.chmod(0o755)
    return {"PATH": f"{uv.parent}:/bin:/usr/bin"}


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("-e nemo-gym[dev] @ ../../\ntiktoken\n", ["tiktoken"]),
        ("tiktoken-e nemo-gym[dev] @ ../../\n", ["tiktoken"]),
        ("-e ../..\nx\n", ["x"]),
        ("../../[dev]\n-e ../..[dev]\n--editable=../../\n-e file:../..  # itself\nx\n", ["x"]),
        ("tiktoken -e nemo-gym[dev] @ ../../\r\n\ufeffx\n", ["tiktoken", "\ufeffx"]),
        ("\ufefftiktoken\n", ["tiktoken"]),
        ("-e ../../helper\n", ["-e ../../helper"]),
        ("nemo_gym @ file:../../\nx\n", ["x"]),
        ("nemo-gym-tools==1.0\n", ["nemo-gym-tools==1.0"]),
        ("nemo-gym==0.4.0\n", ["nemo-gym==0.4.0"]),
        ("helper @ ../helper\n", ["helper @ ../helper"]),
        ("odd==1..2\n\n", ["odd==1..2"]),
    ],
)
def test_only_references_to_nemo_gym_by_relative_path_are_dropped(text: str, lines: list[str]) -> None:
    assert requirement_lines(text) == lines


def make_server(root: Path, requirements: str) -> Path:
    folder = root / "resources_servers" / "counter"
    folder.mkdir(parents=True)
    (folder / "requirements.txt").write_text(requirements)
    (root / "nemo_gym-0.4.0.dist-info").mkdir()
    return folder


def test_an_environment_is_built_once_with_nemo_gyms_version_and_the_folders_requirements(tmp_path: Path) -> None:
    folder, environ = make_server(tmp_path, "-e nemo-gym[dev] @ ../../\ntiktoken\n"), fake_uv(tmp_path)
    program = ForeignProgram(tmp_path, Path("/python3.12"), install=True)
    python = install(folder, program, tmp_path / "cache", environ)
    assert python.is_file() and install(folder, program, tmp_path / "cache", environ) == python
    log = (tmp_path / "log").read_text()
    assert log.count("pip install") == 1 and "--python /python3.12" in log
    assert log.endswith("nemo-gym==0.4.0\ntiktoken\n")


def test_a_failed_installation_is_reported_with_its_end_and_leaves_no_environment(tmp_path: Path) -> None:
    environ = fake_uv(tmp_path, "echo 'no matching distribution' >&2; exit 1")
    folder = make_server(tmp_path, "nowhere\n")
    for _ in range(2):
        with pytest.raises(OperatorError, match=r"(?s)counter.*no matching distribution"):
            install(folder, ForeignProgram(tmp_path, None, install=True), tmp_path / "cache", environ)


def test_without_uv_the_start_is_refused(tmp_path: Path) -> None:
    folder = make_server(tmp_path, "x\n")
    with pytest.raises(OperatorError, match=r"\buv\b"):
        install(folder, ForeignProgram(tmp_path, None, install=True), tmp_path, {"PATH": "/nowhere"})
