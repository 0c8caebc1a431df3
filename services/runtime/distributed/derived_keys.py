"""Derives the keys of a distributed run from the token that all its parts share."""

from __future__ import annotations

import hashlib
import hmac

from rollyard.records.errors import OperatorError
from rollyard.records.run_types import Keys

MIN_LENGTH = 16
"""Minimum token length in characters. The session secret is derived from the token and is no stronger than it."""


def shared_keys(token: str | None) -> Keys:
    """Derive a run's keys from its token. The same token yields the same keys, which do not reveal it.

    Raises OperatorError if the token is missing or too short.
    """
    if not token or len(token) < MIN_LENGTH:
        found = "none is set" if not token else f"this one has {len(token)}"
        raise OperatorError(
            f"the parts of a distributed run need a shared token of at least {MIN_LENGTH} characters, but {found}: "
            "set the same one for every part, e.g. export ROLLYARD_TOKEN=$(openssl rand -hex 16)"
        )
    return Keys(run_id=_derive(token, "run id")[:8], secret=_derive(token, "session secret"), token=token)


def _derive(token: str, purpose: str) -> str:
    return hmac.new(token.encode(), f"rollyard {purpose}".encode(), hashlib.sha256).hexdigest()
