"""Processes that the stack starts itself: the sandbox, answer comparison, isolated environments."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.external.packages.installation import Installation
from tests.external.packages.isolation import version_in_isolation

TRIALS = """
import asyncio, sys
from rollyard.services.sandbox.records import SandboxLimits, Trial
from rollyard.services.sandbox.sandbox import Sandbox

SEARCH_PATH = "import sys; assert any('site-packages' in path or path == '/jail' for path in sys.path), sys.path"

async def main():
    sandbox = Sandbox(SandboxLimits(), bubblewrap="" if sys.argv[1] == "bubblewrap" else None)
    await sandbox.start()
    good = await sandbox.run(Trial(code="def f(x): return x + 1", names=("f",), tests=("assert f(1) == 2",)))
    print(sandbox.layers.mode, good.passed, good.reason)
    for code in ("import numpy", "import rollyard.records.errors", SEARCH_PATH):
        code = f"def f():\\n    {code}\\n    return 1"
        trial = await sandbox.run(Trial(code=code, names=("f",), tests=("assert f() == 1",)))
        print(trial.passed, trial.reason)
    await sandbox.stop()

asyncio.run(main())
"""
COMPARISON = """
import asyncio
from rollyard.resources_servers.answers.worker_pool import WorkerPool

async def main():
    pool = WorkerPool(1, 30.0)
    for answer in ("\\\\frac{1}{2}", "3"):
        print((await pool.compare("0.5", answer)).equal)
    await pool.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("mode", ["bubblewrap", "landlock"])
def test_an_answer_in_the_sandbox_reaches_no_installed_package(main: Installation, mode: str, tmp_path: Path) -> None:
    if mode == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed here; .ci/run installs it")
    (tmp_path / "try.py").write_text(TRIALS)
    first, *rest = main.run("python", "try.py", mode, cwd=tmp_path).splitlines()
    assert first.startswith(f"{mode} True")
    assert len(rest) == 3 and all(line.startswith("False") for line in rest), rest


def test_the_processes_that_compare_answers_import_nothing_of_the_user(main: Installation, tmp_path: Path) -> None:
    for name in ("sympy", "services", "math_verify"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError(__name__)\n")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "compare.py").write_text(COMPARISON)
    assert main.run("python", "code/compare.py", cwd=tmp_path).split() == ["True", "False"]


def test_packages_of_an_isolated_server_precede_those_of_the_stack(main: Installation, tmp_path: Path) -> None:
    assert version_in_isolation(main, tmp_path) == "2.0"
