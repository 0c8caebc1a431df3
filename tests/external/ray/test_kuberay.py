"""The example for Kubernetes: its evaluation plays on a cluster shaped like the example's, and its parts agree."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollyard.records.data_files import INSTALLED
from tests.external.ray.clusters import BIN, NO_TOKEN, Node, short_folder
from tests.support.stacks import read_rows
from tests.support.waiting import deadline_s

EXAMPLE = INSTALLED / "examples" / "kuberay"
Document = dict[str, Any]


@pytest.fixture(scope="module")
def example() -> dict[str, Document]:
    """The documents of the file by their kind."""
    return {one["kind"]: one for one in yaml.safe_load_all((EXAMPLE / "rayjob.yaml").read_text())}


def pods(example: dict[str, Document]) -> list[Document]:
    cluster = example["RayJob"]["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def test_the_pods_have_one_image_with_the_ray_version_that_rollyard_uses(example: dict[str, Document]) -> None:
    dockerfile = (EXAMPLE / "Dockerfile").read_text()
    (version,) = re.findall(r'"ray==([\d.]+)"', (INSTALLED / "pyproject.toml").read_text())
    assert f'"ray[default]=={version}"' in dockerfile
    assert example["RayJob"]["spec"]["rayClusterSpec"]["rayVersion"] == version
    (image,) = {container["image"] for pod in pods(example) for container in pod["containers"]}
    assert f"docker build -t {image} examples/kuberay\n" in dockerfile


def test_what_the_head_mounts_exists_and_belongs_to_the_images_user(example: dict[str, Document]) -> None:
    (head, *_), image = pods(example), (INSTALLED / "Dockerfile").read_text()
    named = {one["name"]: one for one in head["volumes"]}
    mounts = {one["name"]: one["mountPath"] for one in head["containers"][0]["volumeMounts"]}
    assert named["config"]["configMap"]["name"] == example["ConfigMap"]["metadata"]["name"]
    assert (
        named["results"]["persistentVolumeClaim"]["claimName"] == example["PersistentVolumeClaim"]["metadata"]["name"]
    )
    command, file = example["RayJob"]["spec"]["entrypoint"].split()
    assert (BIN / command).is_file()
    assert Path(file).parent == Path(mounts["config"]) and Path(file).name in example["ConfigMap"]["data"]
    folder = Path(mounts["results"]).parent
    assert f"WORKDIR {folder}\n" in image and f"RUN_AS={head['securityContext']['fsGroup']}:" in image
    assert f"USER {head['securityContext']['fsGroup']}:" in (EXAMPLE / "Dockerfile").read_text()


def test_its_evaluation_plays_on_such_a_cluster(example: dict[str, Document], tmp_path: Path) -> None:
    """The head has no CPUs, and all workers that the example allows make up one node."""
    (_, worker), group = pods(example), example["RayJob"]["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    cpus = int(worker["containers"][0]["resources"]["limits"]["cpu"]) * group["maxReplicas"]
    (tmp_path / "eval.yaml").write_text(example["ConfigMap"]["data"]["eval.yaml"])
    with (
        short_folder() as folder,
        Node.head(folder, "127.0.0.1", (), "--num-cpus=0") as head,
        Node.member(folder, head, "127.0.0.1", (), f"--num-cpus={cpus}"),
    ):
        short = ("--limit=2", "--num-repeats=2")
        done = subprocess.run(
            [BIN / "ng_eval", "eval.yaml", *short],
            cwd=tmp_path,
            env={**os.environ, **NO_TOKEN, "RAY_ADDRESS": head.address},
            capture_output=True,
            text=True,
            timeout=3 * deadline_s(),
        )
    assert done.returncode == 0, done.stdout + done.stderr
    (rollouts,) = (tmp_path / "results" / "sokoban_eval").rglob("*ollouts.jsonl")
    assert len(read_rows(rollouts)) == 4
