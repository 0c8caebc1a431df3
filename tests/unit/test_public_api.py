"""`import rollyard`: which modules it loads and which names it offers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rollyard
from rollyard.records.data_files import IMPORT_ROOT


def test_importing_rollyard_loads_no_other_module() -> None:
    code = "import sys; before = set(sys.modules); import rollyard; print(*sorted(set(sys.modules) - before))"
    # As in the sandbox: no site-packages, only the package's folder on the path.
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(IMPORT_ROOT)!r}); {code}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["rollyard"]


@pytest.mark.parametrize("name", rollyard.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(rollyard, name) is not None
    assert name in dir(rollyard)


def test_type_checkers_see_the_same_names_from_the_same_modules() -> None:
    tree = ast.parse(Path(str(rollyard.__file__)).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.name: node.module or "" for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert {*imported, "__version__"} == set(rollyard.__all__)
    modules = {name: module for module, names in rollyard._HOMES.items() for name in names}
    assert {name: module for name, module in imported.items() if module != "rollyard"} == modules


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Enviroment'"):
        rollyard.Enviroment  # noqa: B018
