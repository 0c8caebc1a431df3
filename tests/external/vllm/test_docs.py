"""vLLM accepts the `vllm serve` lines of README and docs/, and those of our commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson

from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.model_source import find_model, local_vllm_model
from rollyard.responses_api_models.local_vllm_model.settings import LocalVllmModelSettings, serve_arguments
from tests.e2e.test_docs import every

# In another process, because importing vLLM emits warnings.
PARSE = """
import json, sys
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
ServeSubcommand().subparser_init(parser.add_subparsers())
for words in json.load(sys.stdin):
    print("MODEL", parser.parse_args(words).model_tag)
"""


def test_every_vllm_line_that_is_documented_or_made_by_ng_eval_is_accepted_by_vllms_parser(tmp_path: Path) -> None:
    documented = every("vllm")
    assert documented
    lines = [words[1:] for words in (*documented, made_by_ng_eval(tmp_path))]
    done = subprocess.run([sys.executable, "-c", PARSE], input=orjson.dumps(lines), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    parsed = [line for line in done.stdout.decode().splitlines() if line.startswith("MODEL")]
    assert parsed == [f"MODEL {words[1]}" for words in lines]


def made_by_ng_eval(folder: Path) -> list[str]:
    settings = {
        "dtype": "float32",
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
        "max_model_len": 4096,
        "trust_remote_code": True,
        "args": ["--enforce-eager", "--kv-cache-memory-bytes", "134217728", "--max-num-seqs", "32"],
    }
    config = EvalConfig.model_validate({"model": f"vllm/{folder}", "output_dir": folder, "vllm": settings})
    given = local_vllm_model(config, find_model(config, {}), folder, command=("vllm",), log=folder / "log", ray="h:1")
    return serve_arguments(LocalVllmModelSettings.model_validate(given), 8000)
