"""The commands of docs/drop-in.md, in a copy of the folder in which they start."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import orjson
import pytest

from rollyard.records.data_files import INSTALLED
from tests.support.commands import Finished, command, command_environ
from tests.support.doc_pages import commands
from tests.support.waiting import deadline_s

FAKE_VLLM = INSTALLED / "tests" / "support" / "fake_vllm.py"
PAGE = INSTALLED / "docs" / "drop-in.md"
QUESTIONS = INSTALLED.parent / "shared" / "data" / "gsm8k" / "test.jsonl"


@pytest.fixture
def drop_in(tmp_path: Path) -> Path:
    return Path(shutil.copytree(INSTALLED / "examples" / "drop_in", tmp_path / "drop_in"))


async def documented(
    drop_in: Path, number: int, replaced: dict[str, str], *flags: str, env: Mapping[str, str] | None = None
) -> Finished:
    """Run the page's evaluation command `number` without a GPU: with other values for some of its options."""
    lines = [line for line in commands(PAGE.read_text()) if line[:2] == ["python", "examples/gsm8k/eval_gsm8k_vllm.py"]]
    words = list(lines[number])
    for option, value in replaced.items():
        if option in words:
            words[words.index(option) + 1] = value
        else:
            words += [option, value]
    return await command(*words, *flags, cwd=drop_in, env={**command_environ(env), "PYTHONPATH": "."})


async def test_the_evaluation_prints_the_figures_and_writes_a_line_per_question(drop_in: Path) -> None:
    given = {"--model": "builtin", "--limit": "5", "--local": str(QUESTIONS)}
    found = await documented(drop_in, 0, given)
    assert found.status == 0, found.err
    assert "---- GSM8K Evaluation ----" in found.out
    assert "parse_err_rate: 0.00%" in found.out
    lines = [orjson.loads(line) for line in (drop_in / "gsm8k_eval.jsonl").read_bytes().splitlines()]
    assert [line["target_answer"] for line in lines] == ["18", "3", "70000", "540", "20"]
    assert all(line["parsed_answer"].isdigit() for line in lines)
    assert (drop_in / "gsm8k_eval" / "reward_analysis.md").is_file()


async def test_an_endpoint_that_does_not_answer_is_named_before_anything_starts(drop_in: Path) -> None:
    found = await documented(drop_in, 0, {"--limit": "5", "--local": str(QUESTIONS), "--port": "1"})
    assert found.status == 2
    assert "http://127.0.0.1:1/v1" in found.err
    assert not (drop_in / "gsm8k_eval.jsonl").exists()


async def test_the_server_script_passes_its_options_to_vllm_on_this_host_only(drop_in: Path, tmp_path: Path) -> None:
    """A copy of the interpreter's folder with a `vllm` that prints its arguments."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "python").symlink_to(sys.executable)
    vllm = bin_folder / "vllm"
    vllm.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    vllm.chmod(0o755)
    arguments = ["-m", "ludic.inference.vllm_server", "--model", "a b/$(c)", "--gpu_memory_utilization", "0.7"]
    done = subprocess.run(
        [bin_folder / "python", *arguments],
        cwd=drop_in,
        capture_output=True,
        text=True,
        check=True,
        timeout=deadline_s(),
    )
    assert done.stdout.splitlines() == [
        *("serve", "a b/$(c)", "--host", "127.0.0.1", "--port", "8000"),
        *("--generation-config", "vllm", "--enforce-eager", "--logprobs-mode", "processed_logprobs"),
        *("--gpu_memory_utilization", "0.7"),
    ]
