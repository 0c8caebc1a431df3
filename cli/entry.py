"""Entry point of all commands: `ng_status`, for example, runs `cli/status.py`.

Importing a command takes half a second. Until its own error handling is active, Ctrl-C ends it immediately and prints
nothing. For `--help` and `--version`, a command is loaded without what only its functions import, in half of that time.
"""

from __future__ import annotations

import ast
import importlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, ModuleType


def main() -> None:
    """Run the command that this program is named after."""
    before = signal.getsignal(signal.SIGINT)
    # Not a KeyboardInterrupt, which libraries catch or wrap while they are imported. An ignored SIGINT stays ignored.
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_silently)
    words = sys.argv[: sys.argv.index("--")] if "--" in sys.argv else sys.argv
    if {"--help", "-h", "--version"} & set(words):
        sys.meta_path.insert(0, _OptionsFinder())
    command = importlib.import_module(f"rollyard.cli.{Path(sys.argv[0]).name.removeprefix('ng_')}")
    signal.signal(signal.SIGINT, before)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # temporary files are removed, as after Ctrl-C
    command.main()


def _end_silently(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


class _OptionsFinder:
    """Finds the modules of `rollyard.cli`, and loads of them what `main` needs to describe the options."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name.startswith("rollyard.cli.") else None
        if spec is not None and spec.origin is not None and name != "rollyard.cli.options":
            spec.loader = _OptionsLoader(name, spec.origin)
        return spec


class _OptionsLoader(SourceFileLoader):
    """Loads a module without imports, classes and constants that only the bodies of functions use, except `main`'s."""

    def get_code(self, fullname: str) -> CodeType | None:
        tree = ast.parse(self.get_data(self.path))
        given = {name: node for node in tree.body for name in _given(node)}
        main = given.get("main")
        if isinstance(main, ast.FunctionDef):
            used = {"main", *_used(main.body), *_used(node for node in tree.body if not _given(node))}
            if "run_command" not in used:
                return super().get_code(fullname)  # this command reads its options with argparse
        else:
            used = {*_used(tree.body), *(name for name, node in given.items() if not hasattr(node, "names"))}
        while more := {name for node in map(given.get, used) if node is not None for name in _used([node])} - used:
            used |= more
        tree.body = [node for node in tree.body if used.intersection(names := _given(node)) or not names]
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and _given(node):
                node.names = [name for name in node.names if (name.asname or name.name) in used]
        code: CodeType = compile(tree, self.path, "exec", dont_inherit=True)
        return code


def _given(node: ast.stmt) -> list[str]:
    """Return the names that a statement defines; none if it must always be executed."""
    match node:
        case ast.Import(names) | ast.ImportFrom(names=names) if getattr(node, "module", "") != "__future__":
            return [name.asname or name.name.partition(".")[0] for name in names]
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
            return [name]
        case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)):
            return [name]
    return []


def _used(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that statements use when they are executed."""
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            defaults = (one for one in (*node.args.defaults, *node.args.kw_defaults) if one is not None)
            yield from _used((*node.decorator_list, *defaults))
        else:
            yield from _used(ast.iter_child_nodes(node))


if __name__ == "__main__":  # python -m rollyard.cli.entry ng_run ...: independent of PATH
    del sys.argv[0]
    main()
