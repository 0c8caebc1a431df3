"""Scripts with flags report a mistake like the commands: one line and exit status 2."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rollyard.records.data_files import INSTALLED
from rollyard.records.script import run_script
from rollyard.resources_servers.grl_sokoban import analyze_rewards, generate_test_examples
from rollyard.resources_servers.gsm8k import prepare as gsm8k
from rollyard.resources_servers.humaneval import prepare as humaneval
from rollyard.resources_servers.ifeval import prepare as ifeval
from rollyard.resources_servers.math import prepare as math
from rollyard.resources_servers.mbpp import prepare as mbpp

PREPARE = (gsm8k.main, math.main, mbpp.main, humaneval.main, ifeval.main)
Main = Callable[[Sequence[str]], int | None]


def run_main(main: Main, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as raised:
        run_script(lambda: main(list(arguments)))
    assert isinstance(raised.value.code, int)
    return raised.value.code, capsys.readouterr().err


MISTAKES = [
    (["--output", "o.jsonl", "--local", "bad.jsonl", "--offline"], "line 1"),
    (["--output", "o.jsonl", "--local", "other.jsonl", "--offline"], "row 0"),
    (["--output", "o.jsonl", "--form", "telegram"], "telegram"),
]
"""Mistakes that each dataset's own code finds, and what the message names."""
MISTAKEN_ARGUMENTS = [
    ([], "--output"),
    (["--output", "o.jsonl", "--local", "none.jsonl", "--offline"], "none.jsonl"),
    (["--output", "o.jsonl", "--local", "other.jsonl", "--limit", "-1"], "-1"),
    (["--output", "o.jsonl", "--offline"], "--s3"),
    (["--output", "o.jsonl", "--fomr", "chat"], "--fomr"),
    (["--output", "folder", "--local", "other.jsonl"], "folder"),
    (["--output", "other.jsonl", "--local", "other.jsonl"], "other.jsonl"),
    (["--output", "rollouts.jsonl", "--local", "other.jsonl"], "rollouts.jsonl"),
    (["--output", "bad.jsonl/o.jsonl", "--local", "other.jsonl"], "bad.jsonl/o.jsonl"),
]
"""Mistakes that the common code finds."""


@pytest.mark.parametrize(
    ("main", "arguments", "named"),
    [
        *((main, *mistake) for main in PREPARE for mistake in MISTAKES),
        *((gsm8k.main, *mistake) for mistake in MISTAKEN_ARGUMENTS),
    ],
)
def test_a_mistake_in_preparing_rows_is_one_line_and_exit_status_2(
    here: Path, capsys: pytest.CaptureFixture[str], main: Main, arguments: list[str], named: str
) -> None:
    (here / "folder").mkdir()
    for name, text in {"bad": "{torn", "other": '{"n": 1}\n', "rollouts": "{}\n", "rollouts_manifest": "{}"}.items():
        (here / f"{name}.json{'' if name.endswith('manifest') else 'l'}").write_text(text)
    status, error = run_main(main, capsys, *arguments)
    assert status == 2 and named in error, error
    assert "Traceback" not in error and "usage:" not in error
    assert not (here / "o.jsonl").exists()


@pytest.mark.parametrize(
    ("main", "arguments", "message"),
    [
        (gsm8k.main, ["--form", "lm_eval_cot", "--shots", "-3"], "-3"),
        (generate_test_examples.main, ["--num-examples", "-5"], "-5"),
        (generate_test_examples.main, ["--num-examples", "some"], "some"),
        (generate_test_examples.main, ["--apart-from", "none.jsonl"], "none.jsonl"),
        (generate_test_examples.main, ["--input", "none.xsb"], "none.xsb"),
        (analyze_rewards.main, ["--rollouts-path", "none.jsonl"], "none.jsonl"),
        (analyze_rewards.main, ["--rollouts-path", "bad.jsonl"], "bad.jsonl: line 1"),
    ],
)
def test_a_mistake_in_a_script_is_one_line_and_exit_status_2(
    here: Path, capsys: pytest.CaptureFixture[str], main: Main, arguments: list[str], message: str
) -> None:
    (here / "bad.jsonl").write_text("{torn\n")
    status, error = run_main(main, capsys, *arguments, "--output", "o.jsonl")
    assert status == 2 and message in error, error
    assert len(error.splitlines()) == 2 and error.endswith("--help'.\n")


def test_a_script_whose_output_is_closed_ends_with_one_line(tmp_path: Path) -> None:
    rollouts = tmp_path / "rollouts.jsonl"
    rollouts.write_text('{"reward": 1.0, "response": {"output": []}}\n')
    reader, writer = os.pipe()
    os.close(reader)
    script = INSTALLED / "resources_servers/grl_sokoban/analyze_rewards.py"
    command = [sys.executable, str(script), "--rollouts-path", str(rollouts)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.returncode == 1
    assert done.stderr.startswith("analyze_rewards.py: ") and done.stderr.count("\n") == 1


def test_a_script_without_stdout_still_writes_its_file(tmp_path: Path) -> None:
    script = INSTALLED / "resources_servers/grl_sokoban/generate_test_examples.py"
    line = f"{sys.executable} {script} --num-examples 1 --output rows.jsonl >&-"
    done = subprocess.run(["/bin/sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "rows.jsonl").read_bytes().count(b"\n") == 1


def test_rows_are_prepared_in_any_folder_with_python_dash_m(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    # A user's own environments must not hide the installed ones.
    (tmp_path / "resources_servers" / "mine").mkdir(parents=True)
    words = ["-m", "rollyard.resources_servers.gsm8k.prepare", "--local", "test.jsonl", "--output", "rows.jsonl"]
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 rows -> rows.jsonl\n"


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("demo.sh", ["--help"], "expected none"),
        ("demo.sh", [], "ng_run"),
        ("demo_lm.sh", ["--help"], "expected none"),
        ("demo_lm.sh", [], "ng_run and vllm"),
    ],
)
def test_a_mistake_in_the_demo_is_one_line_and_exit_status_2(
    tmp_path: Path, name: str, arguments: list[str], message: str
) -> None:
    command = ["/bin/sh", f"{INSTALLED}/configs/{name}", *arguments]
    env = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1
