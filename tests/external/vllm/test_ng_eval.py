"""`ng_eval` with a real vLLM, which a local_vllm_model of its run serves."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.external.vllm.engine import ENVIRONMENT, FLAGS, IN_ONE_WORKER
from tests.support.evaluations import ng_eval


def test_an_evaluation_serves_its_model_logs_it_and_leaves_no_process(tiny_model: Path, tmp_path: Path) -> None:
    given = (
        *(f"model=vllm/{tiny_model}", "environments=[gsm8k]", "limit=2", "colocate=true"),
        *(f"vllm.command=[{Path(sys.executable).with_name('vllm')}]", f"vllm.args=[{','.join(FLAGS)}]"),
        *("vllm.dtype=float32", "vllm.max_model_len=4096", "responses_create_params.max_output_tokens=20"),
    )
    with ng_eval(*given, cwd=tmp_path, output="out", env={**ENVIRONMENT, **IN_ONE_WORKER}) as running:
        assert running.wait() == 0, running.printed
        assert "2 of 2" in running.printed and running.rows() == 2
        assert f"serve {tiny_model} " in (tmp_path / "out/logs/vllm_server.log").read_text()
        running.leaves_nothing()
