"""A GSM8K evaluation goes on after an interruption, while the Hugging Face hub cannot be reached."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import orjson

from rollyard.records.data_files import INSTALLED
from rollyard.resources_servers.gsm8k.prepare import main as prepare
from tests.support.commands import command_environ
from tests.support.processes import alive, free_port
from tests.walkthroughs.test_gsm8k_evaluation import QUESTIONS, documented, drop_in

FAKE_VLLM = INSTALLED / "tests" / "support" / "fake_vllm.py"
__all__ = ["drop_in"]  # a fixture


async def test_an_interrupted_evaluation_continues_while_the_hub_is_unreachable(drop_in: Path) -> None:
    """Its rows were read from the hub; vLLM is started, and the paths contain spaces."""
    out = drop_in / "my results" / "all of it.jsonl"
    folder = out.with_suffix("")
    folder.mkdir(parents=True)
    rows = [orjson.loads(line) for line in QUESTIONS.read_bytes().splitlines()[:2]]
    (drop_in / "two.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    prepare([*("--local", str(drop_in / "two.jsonl")), *("--output", str(folder / "rows.jsonl"))])
    (folder / "rows_options.json").write_text('["--split","test","--system-prompt","","--limit","2"]')
    vllm, notes = drop_in / "bin" / "vllm", drop_in / "notes"
    vllm.parent.mkdir()
    notes.mkdir()
    vllm.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE_VLLM} "$@"\n')
    vllm.chmod(0o755)
    unreachable = {"HF_ENDPOINT": "http://127.0.0.1:1", "FAKE_NOTES": str(notes)}
    path = {"PATH": f"{vllm.parent}{os.pathsep}{command_environ()['PATH']}"}
    given = {"--limit": "2", "--out": str(out), "--port": str(free_port())}
    found = await documented(drop_in, 0, given, "--start-server", env={**unreachable, **path})
    assert found.status == 0, found.err
    assert len(out.read_bytes().splitlines()) == 2
    (start,) = (orjson.loads(note.read_bytes()) for note in notes.iterdir())
    assert {"Qwen/Qwen2.5-0.5B-Instruct", given["--port"], "--generation-config=vllm"} <= {*start["arguments"]}
    assert not alive(start["api"])
    again = await documented(drop_in, 0, {**given, "--max-tokens": "7"}, "--start-server", env={**unreachable, **path})
    assert again.status == 2
    assert "different parameters" in again.err and "accuracy" not in again.out
