"""Errors of torch and transformers as one line that names the step that failed."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from rollyard.records.errors import RollyardError, RunError

_LONGEST = 600


@contextmanager
def stage(doing: str, hint: str = "") -> Iterator[None]:
    """Raise RunError for an error inside. A full disk remains an OSError: it says nothing about the checkpoint."""
    try:
        yield
    except (RollyardError, MemoryError):
        raise
    except Exception as error:
        if full := _full_disk(error):
            raise full from error
        reason = " ".join(str(error).split())
        if len(reason) > _LONGEST:
            reason = f"{reason[:_LONGEST]}…"
        advice = f". {hint}" if hint else ""
        raise RunError(f"{doing} failed: {type(error).__name__}: {reason}{advice}") from error


def _full_disk(error: BaseException | None) -> OSError | None:
    """Return the error of a full disk behind an error of a library, some of which only quote it."""
    text = str(error)
    for number in (errno.ENOSPC, errno.EDQUOT):
        reason = OSError(number, "").strerror or {errno.ENOSPC: "No space left on device"}.get(
            number, "Disk quota exceeded"
        )
        if isinstance(error, OSError) and error.errno == number:
            return OSError(number, reason, error.filename or "")
        if f"{reason} (os error {number})" in text:
            return OSError(number, reason)
    return None
