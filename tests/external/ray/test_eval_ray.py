"""The Ray cluster that ng_eval starts for a model on several GPUs: its own, and gone afterwards."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rollyard.launchers.evaluation.eval_state import ControlRequests, EvalFolder
from rollyard.launchers.evaluation.evaluate import RunningStages, start_ray
from rollyard.launchers.evaluation.plan import EvalPlan
from rollyard.services.runtime.ray_launcher import check_cluster
from tests.support.processes import processes_with

MARK = "ROLLYARD_TEST_EVAL_RAY"


@dataclass
class Plan:
    """The part of a plan that the stage reads."""

    ray_command: tuple[str, ...]
    folder: EvalFolder
    here: Path


async def test_a_cluster_of_its_own_answers_and_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    plan: Any = Plan((str(Path(sys.executable).with_name("ray")),), EvalFolder(tmp_path), tmp_path)
    stages = RunningStages(ControlRequests())
    try:
        address = await start_ray(cast(EvalPlan, plan), {**os.environ, MARK: tmp_path.name}, stages)
        await check_cluster(address)
        assert list(processes_with(MARK, tmp_path.name))
        (folder,) = [Path(word.partition("=")[2]) for word in _title(tmp_path) if word.startswith("--temp-dir=")]
        assert folder.is_dir()
    finally:
        await stages.stop()
    assert not list(processes_with(MARK, tmp_path.name))
    assert not folder.exists()


def _title(root: Path) -> list[str]:
    return EvalFolder(root).log("ray_head").read_text().splitlines()[0].split()
