"""ng_eval with a config file of NeMo-RL and the built-in policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.records.data_files import INSTALLED
from tests.support.commands import in_this_process
from tests.support.stacks import read_rows

ROWS = INSTALLED / "resources_servers/gsm8k/data/example.jsonl"
CONFIG = f"generation: {{model_name: builtin, temperature: 0.6}}\neval: {{k_value: 1}}\ndata: {{dataset_name: {ROWS}}}"


def test_a_config_of_nemo_rl_is_evaluated_and_its_score_is_printed(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "nemo.yaml").write_text(CONFIG)
    keys = ("environments=[gsm8k]", "colocate=true", "eval.num_tests_per_prompt=2", "output_dir=out")
    done = in_this_process("ng_eval", "nemo.yaml", *keys, capsys=capsys)
    assert done.status == 0, done.err
    assert "score=" in done.out and "num_tests_per_prompt=2" in done.out
    assert len(read_rows(here / "out/rollouts.jsonl")) == 10
