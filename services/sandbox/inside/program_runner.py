"""Running the answer's program, statement by statement where one that raises may be passed over."""

from __future__ import annotations
import __future__

import ast
from typing import Any

from rollyard.services.sandbox.inside.exceptions import describe_exception

_FILE = "<answer>"
_POSTPONED = __future__.annotations.compiler_flag


def run(code: str, wanted: list[str] | None, names: dict[str, Any]) -> str | None:
    """Execute `code` with the globals `names`; what its first statement that was passed over raised.

    With `wanted`, top-level statements that raise are passed over, as long as the program gives those names a meaning
    in the end: it may show itself with input that is not there, or test itself wrongly. Raises what the program raises.
    """
    # Not inherited: this file's `from __future__ import annotations` would hide a missing `import typing`.
    whole = compile(code, _FILE, "exec", dont_inherit=True)
    if wanted is None:
        exec(whole, names)
        return None
    first: BaseException | None = None
    for statement in ast.parse(code).body:
        part = compile(ast.Module([statement], []), _FILE, "exec", whole.co_flags & _POSTPONED, dont_inherit=True)
        try:
            exec(part, names)
        except BaseException as error:  # a demonstration may end with sys.exit()
            first = first or error
    if first is not None and not all(name in names for name in wanted):
        raise first
    return None if first is None else ": ".join(describe_exception(first))
