"""Runs the answer's program, optionally skipping top-level statements that raise."""

from __future__ import annotations
import __future__

import ast
from typing import Any

from rollyard.services.sandbox.inside.exceptions import describe_exception

_FILE = "<answer>"
_FUTURE_ANNOTATIONS = __future__.annotations.compiler_flag


def run(code: str, required_names: list[str] | None, namespace: dict[str, Any]) -> str | None:
    """Execute `code` with the globals `namespace`. Return the error of the first skipped statement, or None.

    With `required_names`, top-level statements that raise are skipped if the program defines those names: the
    statements may be demonstrations that need input, or wrong tests. Otherwise, the program's exceptions propagate.
    """
    # dont_inherit: this file's `from __future__ import annotations` would hide a missing `import typing`.
    program = compile(code, _FILE, "exec", dont_inherit=True)
    if required_names is None:
        exec(program, namespace)
        return None
    first_error: BaseException | None = None
    for statement in ast.parse(code).body:
        part = compile(
            ast.Module([statement], []), _FILE, "exec", program.co_flags & _FUTURE_ANNOTATIONS, dont_inherit=True
        )
        try:
            exec(part, namespace)
        except BaseException as error:  # including SystemExit of a demonstration
            first_error = first_error or error
    if first_error is not None and not all(name in namespace for name in required_names):
        raise first_error
    return None if first_error is None else ": ".join(describe_exception(first_error))
