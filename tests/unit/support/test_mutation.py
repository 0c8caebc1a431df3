"""Tests which changes a line allows, which lines are drawn, which tests run, and what is read from a run."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.mutation.mutations import draw, mutations, same_lines
from tests.mutation.selection import Imports
from tests.mutation.suites import read_events


def changes(source: str) -> set[str]:
    return {ast.unparse(ast.parse(mutation.apply(source))) for mutation in mutations(source)}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", {"a >= b", "a <= b"}),
        ("a in b", {"a not in b"}),
        ("a and b", {"a or b"}),
        ("not a", {"a"}),
        ("a + 2", {"a - 2", "a + 3"}),
        ("x = 60.0", {"x = 0"}),
        ("x = True", {"x = False"}),
        ("x = 'key'", {"x = 'keyx'"}),
        ("if a:\n    pass", {"if not a:\n    pass"}),
        ("[a for a in b if c]", {"[a for a in b if not c]"}),
        ("f(a, b=c)", {"f(a)", "pass"}),
        ("a.b = c", {"pass"}),
        ("raise a", {"pass"}),
        ("def f():\n    return a", {"def f():\n    return None"}),
        ("def f():\n    return False", {"def f():\n    return True"}),
        ("for a in b:\n    break", {"for a in b:\n    continue"}),
        ("x = a if b else c", {"x = c if b else a", "x = a if not b else c"}),
        ("case = 'é' * a", {"case = 'éx' * a", "case = 'é' // a"}),
    ],
)
def test_each_construct_has_its_changes(source: str, expected: set[str]) -> None:
    assert changes(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring."""',
        "x: Literal['a']",
        "def f(a: 'A') -> 'B': ...",
        "x = 'a sentence'",
        "x = f'{1}'",
        "@dataclass(slots=True)\nclass A: ...",
        "a = b",
    ],
)
def test_what_hardly_changes_the_behaviour_stays(source: str) -> None:
    assert changes(source) == set()


def test_a_change_replaces_no_more_than_its_expression() -> None:
    source = "x = {'é': (a\n    and b), 'c': d}  # comment\n"
    changed = "x = {'é': ((a or b)), 'c': d}  # comment\n"
    assert {m.apply(source) for m in mutations(source) if m.old == "a and b"} == {changed}


SOURCE = "".join(f"x{n} = {n} + a\n" for n in range(40))


def drawn(seed: str, after: Mapping[str, str]) -> list[tuple[str, int, str]]:
    return [(path, mutation.line, mutation.new) for path, mutation in draw({"m.py": SOURCE}, after, 8, seed)]


def test_a_seed_draws_as_many_lines_as_asked_and_the_same_again() -> None:
    first = drawn("1", {"m.py": SOURCE})
    assert first == drawn("1", {"m.py": SOURCE}) != drawn("2", {"m.py": SOURCE})
    assert len({line for _, line, _ in first}) == 8


def test_only_lines_that_both_have_are_drawn() -> None:
    after = "new = 1\n" + "".join(line for line in SOURCE.splitlines(keepends=True) if "5" not in line)
    assert not {line for _, line, _ in drawn("1", {"m.py": after})} & {6, 16, 26, 36}
    assert drawn("1", {"other.py": SOURCE}) == []
    assert same_lines(SOURCE, after)[7] == 7 and same_lines(SOURCE, after)[5] == 6


@pytest.fixture
def imports(tmp_path: Path) -> Imports:
    files = {
        "services/http/client.py": "",
        "services/head/registry.py": "from rollyard.services.http.client import Client",
        "src/rollyard/api.py": "from rollyard.services.head import registry",
        "tests/support/stack.py": "MODULE = 'rollyard.services.head.registry'",
        "tests/unit/services/http/test_client.py": "import rollyard.services.http.client",
        "tests/unit/services/http/test_address.py": "",
        "tests/unit/services/head/test_registry.py": "import rollyard.services.head.registry",
        "tests/unit/services/head/test_other.py": "",
        "tests/integration/test_stack.py": "from tests.support.stack import MODULE",
        "tests/e2e/test_api.py": "import rollyard.api",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return Imports(tmp_path)


def test_the_nearest_tests_run_first(imports: Imports) -> None:
    assert imports.tests_of("services/http/client.py") == [
        "tests/unit/services/http/test_client.py",
        "tests/unit/services/http/test_address.py",
        "tests/unit/services/head/test_registry.py",
        "tests/integration/test_stack.py",
        "tests/e2e/test_api.py",
    ]


def events(*rows: tuple[str, str, bool, float], status: int) -> list[str]:
    lines = [json.dumps({"kind": kind, "test": test, "failed": bad, "cpu": cpu}) for kind, test, bad, cpu in rows]
    begin = json.dumps({"kind": "begin", "test": "a", "failed": False})
    return [begin, *lines, json.dumps({"kind": "end", "test": "", "status": status})]


PASSED = (("start", "a::x", False, 0.0), ("call", "a::x", False, 2.0), ("start", "b::y", False, 2.5))


def test_the_first_failure_counts_and_cpu_time_belongs_to_files() -> None:
    run = read_events(events(*PASSED, ("call", "b::y", True, 6.0), ("start", "b::z", False, 6.0), status=1), hung=False)
    assert (run.failed, run.finished) == ("b::y", False)
    assert run.cpu_s == {"a": 2.0, "b": 4.0}


@pytest.mark.parametrize(("status", "hung", "failed"), [(-9, True, "b::y"), (-11, False, "b::y"), (2, False, None)])
def test_a_hang_or_a_crash_is_the_fault_of_the_last_test(status: int, hung: bool, failed: str | None) -> None:
    run = read_events(events(*PASSED, status=status), hung)
    assert (run.failed, run.finished) == (failed, False)


def test_a_crash_before_any_test_is_the_fault_of_the_first_file() -> None:
    assert read_events(events(status=4), hung=False).failed == "a"
