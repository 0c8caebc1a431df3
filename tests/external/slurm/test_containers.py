"""Containers, with programs in place of Pyxis and Apptainer that run the command on the node itself."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from rollyard.launchers.slurm.job import JobState
from tests.external.slurm.launched import Launched, Launcher

PYXIS = """#!/bin/bash
[ "$1" = --help ] && echo --container-image && exit
options=()
for option; do
    shift
    case $option in
        --container-*) echo "PYXIS $option" ;;
        --*) options+=("$option") ;;
        *) exec {srun} "${{options[@]}}" "$option" "$@" ;;
    esac
done
"""
APPTAINER = """#!/bin/bash
echo "APPTAINER $*" | cut -c 1-80
shift 4
exec "$@"
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    (tmp_path / "srun").write_text(PYXIS.format(srun=shlex.quote(str(shutil.which("srun")))))
    (tmp_path / "apptainer").write_text(APPTAINER)
    for name in ("srun", "apptainer"):
        (tmp_path / name).chmod(0o755)
    return tmp_path


def submitted(launcher: Launcher, program: str, programs: Path, **settings: Any) -> Launched:
    return launcher.submit_spec(launcher.spec(program, container="an image", max_retries=0, **settings), programs)


def test_a_command_in_pyxis_gets_gpus_and_is_told_to_stop(launcher: Launcher, programs: Path) -> None:
    program = (
        "def stop(*_): print('STOPPED'); sys.exit(130)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "print('GPUS', os.environ.get('CUDA_VISIBLE_DEVICES'), len(os.sched_getaffinity(0)), flush=True)\n"
        "if START == 1: time.sleep(600)"
    )
    settings: dict[str, Any] = {"mounts": ("/a:/b", "/c"), "gpus_per_node": 2, "time": "1", "drain_before_s": 57}
    job = submitted(launcher, program, programs, container_runtime="pyxis", **settings)
    assert job.until_over() == JobState.COMPLETED
    assert job.ends() == [JobState.DRAINED, JobState.COMPLETED]
    assert "PYXIS --container-image=an image" in job.log()
    assert "PYXIS --container-mounts=/a:/b,/c" in job.log()
    assert len(job.log().split("GPUS ")[1].split()[0].split(",")) == 2
    assert "STOPPED" in job.log()


def test_a_command_in_apptainer_completes(launcher: Launcher, programs: Path) -> None:
    job = submitted(launcher, "print('INSIDE')", programs, container_runtime="apptainer", mounts=("/a:/b",))
    assert job.until_over() == JobState.COMPLETED
    assert "APPTAINER exec --bind /a:/b an image" in job.log()
    assert "INSIDE" in job.log()


def test_a_node_without_the_runtime_is_one_line(launcher: Launcher) -> None:
    for runtime, named in (("pyxis", "--container-image"), ("apptainer", "PATH")):
        spec = launcher.spec("pass", container_runtime=runtime, container="an image", max_retries=0)
        job = launcher.submit_spec(spec)
        assert job.until_over() == JobState.FAILED
        assert named in str(job.attempts()[0].reason)
