"""vLLM accepts the `vllm serve` lines of README and docs/."""

from __future__ import annotations

import subprocess
import sys

import orjson

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


def test_every_documented_vllm_line_is_accepted_by_vllms_parser() -> None:
    lines = [words[1:] for words in every("vllm")]
    assert lines
    done = subprocess.run([sys.executable, "-c", PARSE], input=orjson.dumps(lines), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    parsed = [line for line in done.stdout.decode().splitlines() if line.startswith("MODEL")]
    assert parsed == [f"MODEL {words[1]}" for words in lines]
