"""Whether this host allows shell boxes, which need user namespaces."""

from __future__ import annotations

from rollyard.services.errors import OperatorError
from rollyard.services.sandbox.shell.records import BoxLimits
from rollyard.services.sandbox.shell.shell_box import ShellBox, plan_for


async def why_no_box() -> str:
    """Return why a shell box cannot start on this host; empty if it can."""
    try:
        box = await ShellBox.start(plan_for(BoxLimits()))
    except OperatorError as error:
        return str(error)
    await box.close()
    return ""
