"""What sbatch gets, and what it never gets: values of the user as shell text."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rollyard.launchers.slurm.job import (
    ChainJob,
    JobSpec,
    check_spec,
    read_record,
    sbatch_arguments,
    script,
    write_job,
)
from rollyard.launchers.slurm.nodes import check_container, in_container, on_node
from rollyard.records.errors import OperatorError


def spec(folder: Path = Path("/jobs/one"), **settings: Any) -> JobSpec:
    return JobSpec(**{"name": "one", "folder": folder, "command": ("ng_eval",), **settings})


def test_options_of_the_user_are_arguments_before_the_script() -> None:
    job = spec(Path("/100%j done"), sbatch_args=("--qos=high $(x)",), account="a b")
    arguments = sbatch_arguments(job, "c", 2, ["afternotok:7"])
    assert arguments[-4:] == ["--qos=high $(x)", "/100%j done/job.sh", "2", "c"]
    assert {"--account=a b", "--gres=gpu:8", "--output=/100%%j done/logs/slurm-%j.out"} < set(arguments)
    assert arguments.index("--kill-on-invalid-dep=yes") == arguments.index("--dependency=afternotok:7") + 1
    assert not any(one.startswith("--gres") for one in sbatch_arguments(spec(gpus_per_node=0), "c", 1))


def test_the_script_passes_the_folder_as_one_argument(tmp_path: Path) -> None:
    folder = tmp_path / "a 'b' \"c\" $(touch evil) `touch evil`\n%j"
    shown = script(folder).replace("exec ", "printf '%s\\0' ")
    done = subprocess.run(["bash", "-c", shown, "job.sh", "3"], capture_output=True, check=True, cwd=tmp_path)
    assert done.stdout.decode().split("\0")[-3:-1] == [str(folder), "3"]
    assert not (tmp_path / "evil").exists()


def test_the_command_with_its_secrets_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    job = spec(tmp_path / "job", environment={"KEY": "x,y\nz"})
    write_job(job, "c")
    assert stat.S_IMODE((tmp_path / "job/job.json").stat().st_mode) == 0o600
    assert read_record(job.folder / "job.json", ChainJob).spec == job
    assert (job.folder / "logs").is_dir()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"command": ()}, "has no command"),
        ({"time": "1:30", "drain_before_s": 90}, "not longer than drain_before_s=90"),
        ({"sbatch_args": ("--comment=mine",)}, "'--comment=mine'"),
        ({"sbatch_args": ("--nodes=3",)}, "use --nodes"),
        ({"sbatch_args": ("-t5",)}, "'-t5'"),
        ({"sbatch_args": ("high",)}, "--qos=high"),
        ({"command": ("a\0b",)}, "null character"),
        ({"folder": Path("/a\\b")}, "backslash"),
        ({"container_runtime": "pyxis"}, "needs an image"),
        ({"container_runtime": "pyxis", "container": "i", "mounts": ("/a,b",)}, "cannot contain one"),
    ],
)
def test_a_job_that_sbatch_or_its_container_could_not_handle_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        check_spec(spec(**settings))
        check_container(spec(**settings))


def test_pyxis_is_an_option_of_a_step_with_all_cpus_and_gpus_of_the_node() -> None:
    job = spec(container_runtime="pyxis", container="an image.sqsh", mounts=("/a b:/c", "/d"), gpus_per_node=2)
    command = in_container(job, "n1", 4, ["ng_eval", "a b"])
    assert command[0] == "srun"
    assert {"--nodelist=n1", "--cpus-per-task=4", "--gres=gpu:2", "--overlap"} <= set(command)
    assert command[-4:] == ["--container-image=an image.sqsh", "--container-mounts=/a b:/c,/d", "ng_eval", "a b"]


def test_apptainer_runs_the_command_in_the_image() -> None:
    assert in_container(spec(), "n1", 4, ["ng_eval", "a b"]) == ["ng_eval", "a b"]  # without a container
    job = spec(container_runtime="apptainer", container="an image.sif", mounts=("/a b:/c",), gpus_per_node=1)
    inside = ["apptainer", "exec", "--nv", "--bind", "/a b:/c", "an image.sif", "ray", "start"]
    assert in_container(job, "n1", None, ["ray", "start"]) == inside
    assert on_node(job, "n2", None, ["ray", "start"])[-len(inside) :] == inside


def test_a_job_of_an_earlier_version_is_read_without_what_is_gone() -> None:
    stored = spec().model_dump(mode="json") | {"command": ["ng_eval", "a.yaml", "worker=job-1"], "max_walltime_s": None}
    assert JobSpec.model_validate(stored).command == ("ng_eval", "a.yaml")
