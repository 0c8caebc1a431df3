"""The scripted model endpoint, and the CPU time of processes."""

from __future__ import annotations

import subprocess
import sys

import orjson
import pytest

from benchmarks.processes import family_cpu_s
from benchmarks.scripted_model import Script

BURN = "import time\nwhile time.process_time() < 0.3: pass"
PARENT = (
    f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])\nprint(flush=True)\nsys.stdin.read()"
)


def _request(path: str, outputs: int, key: str) -> bytes:
    messages = [{"role": "user", "content": 'a quoted "call_99" is text'}]
    messages += [{"type": "tool", key: f"call_{number}", "content": "a board"} for number in range(outputs)]
    return b"POST /v1/%b HTTP/1.1\r\n\r\n" % path.encode() + orjson.dumps({"input": messages, "tools": []})


@pytest.mark.parametrize(("path", "key"), [("chat/completions", "tool_call_id"), ("responses", "call_id")])
def test_the_last_tool_call_decides_which_turn_is_answered(path: str, key: str) -> None:
    script = Script(200)
    expected = script.chat if key == "tool_call_id" else script.responses
    assert [script.answer(_request(path, turn, key)) for turn in (0, 1, 150, 199)] == [
        expected[turn] for turn in (0, 1, 150, 199)
    ]


def test_the_cpu_time_of_a_family_includes_children_that_have_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        assert family_cpu_s(process.pid) >= 0.3
