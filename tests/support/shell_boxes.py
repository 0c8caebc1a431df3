"""Whether this host allows shell boxes, which need user namespaces."""

from __future__ import annotations

from rollyard.records.errors import OperatorError
from rollyard.services.sandbox.shell_box import BoxLimits, ShellBox, plan_for

_found: list[str] = []


async def why_no_box() -> str:
    """Return why a shell box cannot start on this host; empty if it can. Tried once per process."""
    if not _found:
        try:
            box = await ShellBox.start(plan_for(BoxLimits()))
        except OperatorError as error:
            _found.append(str(error))
        else:
            await box.close()
            _found.append("")
    return _found[0]
