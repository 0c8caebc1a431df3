"""Tests which tests `make flaky` runs, and what it reads from a round."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flaky import changed_tests, failures, load
from tests.mutation.selection import Imports


@pytest.fixture
def imports(tmp_path: Path) -> Imports:
    files = {
        "tests/unit/test_a.py": "import tests.support.rare",
        "tests/external/vllm/test_b.py": "import tests.support.rare",
        "tests/support/rare.py": "",
        "tests/support/common.py": "",
        **{f"tests/unit/test_{n}.py": "import tests.support.common" for n in range(11)},
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return Imports(tmp_path)


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("tests/unit/test_3.py", ["tests/unit/test_3.py"]),
        ("tests/support/rare.py", ["tests/unit/test_a.py"]),
        ("tests/support/common.py", []),
        ("tests/unit/test_removed.py", []),
        ("tests/support/removed.py", []),
        ("tests/external/vllm/test_b.py", []),
        ("tests/support/page.html", []),
    ],
)
def test_changed_tests_run_and_those_of_a_helper_that_few_import(
    imports: Imports, changed: str, tests: list[str]
) -> None:
    assert changed_tests([changed], imports) == tests


def test_a_report_names_the_tests_that_failed_and_how(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        """<testsuites><testsuite>
        <testcase classname="t.a" name="passed"/>
        <testcase classname="t.a" name="skipped"><skipped/></testcase>
        <testcase classname="t.a" name="bad"><failure message="m">trace</failure><error>later</error></testcase>
        <testcase classname="t.b" name="broken"><error message="only"/></testcase>
        </testsuite></testsuites>"""
    )
    assert failures(report) == {"t.a::bad": "trace", "t.b::broken": "only"}


def test_busy_processes_end_with_the_block_even_if_it_fails() -> None:
    with pytest.raises(ZeroDivisionError), load(2) as processes:
        assert [process.poll() for process in processes] == [None, None]
        raise ZeroDivisionError
    assert None not in [process.returncode for process in processes]
