"""Servers that reserve resources of a Ray cluster: they are placed by Ray, and wait until the cluster has room."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tests.external.ray.clusters import MODEL_ONLY, Node, Run, short_folder
from tests.support.local_engines import FAKE

MODEL = "policy_model.responses_api_models.builtin_model"
ENGINES = "responses_api_models/local_vllm_model/configs/local_vllm_model.yaml"


@pytest.fixture(scope="module")
def gpu_cluster() -> Iterator[Node]:
    """A cluster with 1 CPU and what Ray takes for 4 GPUs."""
    with short_folder() as folder, Node.head(folder, "127.0.0.1", (), "--num-gpus=4") as node:
        yield node


def test_a_cluster_that_scales_grows_for_what_the_servers_reserve(tmp_path: Path) -> None:
    overrides = (f"+{MODEL}.replicas=2", f"+{MODEL}.resources={{num_cpus: 1.5}}")
    with (
        short_folder() as folder,
        Node.scaling_head(folder, worker_cpus=2, max_workers=2) as node,
        Run(tmp_path, node.address, *overrides, config=MODEL_ONLY) as run,
    ):
        assert len(run.until_ready().instances()) == 2  # although the cluster began without a CPU
        run.process.send_signal(signal.SIGINT)
        assert run.ended() == 0


@pytest.mark.parametrize(
    ("resources", "replicas", "needed"),
    [
        (
            "{num_gpus: 8, custom: {sandbox: 1}}",
            1,
            "8 GPU, 1 sandbox (no host has that much); free on the cluster's 1 host: 4 of 4 GPU, 0 of 0",
        ),
        ("{num_gpus: 1, strategy: STRICT_SPREAD}", 2, "2 x 1 GPU on different hosts (STRICT_SPREAD); free"),
    ],
)
def test_what_the_cluster_never_has_is_one_line(
    resources: str, replicas: int, needed: str, gpu_cluster: Node, tmp_path: Path
) -> None:
    overrides = (f"+{MODEL}.resources={resources}", f"+{MODEL}.replicas={replicas}", "+ready_timeout_s=5")
    with Run(tmp_path, gpu_cluster.address, *overrides, config=MODEL_ONLY) as run:
        assert run.ended() == 1
        line = run.output.splitlines()[-1]
        assert "policy_model: the Ray cluster has not placed it within 5 s" in line
        assert needed in line
        assert "Traceback" not in run.output


def test_ctrl_c_ends_a_run_that_waits_for_resources(gpu_cluster: Node, tmp_path: Path) -> None:
    with Run(tmp_path, gpu_cluster.address, f"+{MODEL}.resources={{num_gpus: 8}}", config=MODEL_ONLY) as run:
        run.until_printed("waiting for 8 GPU")
        run.process.send_signal(signal.SIGINT)
        assert run.ended() == 130
        assert "Traceback" not in run.output


def test_engines_get_gpus_of_their_own_from_ray(gpu_cluster: Node, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "model").mkdir()
    variables = f"{{FAKE_NOTES: {tmp_path}/notes}}"
    engine = "policy_model.responses_api_models.local_vllm_model"
    overrides = (
        *(f"{engine}.model={tmp_path}/model", f"+{engine}.vllm_command=[{sys.executable},{FAKE}]"),
        *(f"+{engine}.environment={variables}", f"+{engine}.replicas=2", f"+{engine}.tensor_parallel_size=2"),
    )
    with Run(tmp_path, gpu_cluster.address, *overrides, config=ENGINES) as run:
        run.until_ready()
        engines = [orjson.loads(note.read_bytes())["api"] for note in (tmp_path / "notes").iterdir()]
        assert sorted(visible(pid) for pid in engines) == ["0,1", "2,3"]


def visible(pid: int) -> str:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    (value,) = [one.partition(b"=")[2] for one in variables if one.startswith(b"CUDA_VISIBLE_DEVICES=")]
    return value.decode()
