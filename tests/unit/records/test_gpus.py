from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.records.gpus import present_gpus


@pytest.mark.parametrize("device", ["nvidia0", "nvidiactl", "nvhost-gpu", "dxg", "kfd"])
def test_gpus_are_those_of_the_variable_if_the_host_has_a_driver(device: str, tmp_path: Path) -> None:
    (tmp_path / device).touch()
    assert present_gpus({"CUDA_VISIBLE_DEVICES": "1, 3"}, tmp_path) == ["1", "3"]


def test_a_variable_makes_no_gpu(tmp_path: Path) -> None:
    (tmp_path / "nvme0").touch()
    assert present_gpus({"CUDA_VISIBLE_DEVICES": "1"}, tmp_path) is None
