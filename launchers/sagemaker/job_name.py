"""Names of SageMaker jobs. They do not describe the experiment, because names appear in logs that others can read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta

from rollyard.records.errors import OperatorError

MAX_LENGTH = 63
_PATTERN = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
_STAMP = "%Y%m%d-%H%M%S"
_STAMP_LENGTH = 15
MAX_CANDIDATES = 120


def checked(name: str) -> str:
    """Return the name. Raises OperatorError if SageMaker would not accept it."""
    if len(name) > MAX_LENGTH:
        raise OperatorError(f"job name {name!r} has {len(name)} characters; SageMaker accepts at most {MAX_LENGTH}")
    if not _PATTERN.fullmatch(name):
        raise OperatorError(
            f"job name {name!r}: expected letters, digits and hyphens, starting and ending with a letter or digit "
            f"({_PATTERN.pattern})"
        )
    return name


def training_names(now: datetime) -> Iterator[str]:
    """Yield `annotations-adhoc-<stamp>` for this second and the following ones, for when a name is taken."""
    for seconds in range(MAX_CANDIDATES):
        yield f"annotations-adhoc-{_stamp(now, seconds)}"


def evaluation_names(stem: str, now: datetime) -> Iterator[str]:
    """Yield `eval-<stem>-<stamp>`. The stem is shortened, and its other characters become hyphens."""
    longest = MAX_LENGTH - len("eval--") - _STAMP_LENGTH
    clean = re.sub(r"[^a-zA-Z0-9]+", "-", stem).strip("-")[:longest].strip("-") or "config"
    for seconds in range(MAX_CANDIDATES):
        yield f"eval-{clean}-{_stamp(now, seconds)}"


def _stamp(now: datetime, seconds: int) -> str:
    return (now + timedelta(seconds=seconds)).strftime(_STAMP)
