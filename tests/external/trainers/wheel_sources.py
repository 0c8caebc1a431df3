"""Classes and functions of trainers, taken from their installed sources.

The packages import GPU libraries at their top, so that they cannot be imported here. A definition is compiled from the
file of the wheel, unchanged, with the names that it needs.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

_ENVIRONMENT = Path(__file__).resolve().parents[3] / ".venv-trainers"
SITE = next(path for path in _ENVIRONMENT.glob("lib/python*/site-packages") if (path / "verl").exists())


def module_of(name: str, *definitions: str, **names: Any) -> ModuleType:
    """A module of this name with these definitions of the installed file. `names`: what they use of other modules."""
    path = SITE / (name.replace(".", "/") + ".py")
    tree = ast.parse(path.read_text())
    wanted = [node for node in tree.body if getattr(node, "name", None) in definitions or _assigns(node, definitions)]
    assert len(wanted) >= len(definitions), f"{path} lacks some of {definitions}"
    module = ModuleType(name)
    sys.modules[name] = module  # dataclasses and pydantic look their module up
    vars(module).update(names)
    exec(compile(ast.Module(body=wanted, type_ignores=[]), str(path), "exec"), vars(module))
    return module


def _assigns(node: ast.AST, names: tuple[str, ...]) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return any(isinstance(target, ast.Name) and target.id in names for target in targets)
