"""The keys of a run whose parts start independently: derived from the one secret that they share."""

from __future__ import annotations

import hashlib
import hmac

from rollyard.services.errors import OperatorError
from rollyard.services.types import Keys

SHORTEST = 16
"""Characters of a token. The secret that signs sessions is made of it, and no better than it is."""


def shared_keys(token: str | None) -> Keys:
    """The same keys wherever the token is the same; neither key tells the token. Raises OperatorError."""
    if not token or len(token) < SHORTEST:
        found = "there is none" if not token else f"this one has {len(token)}"
        raise OperatorError(
            f"the parts of a run that start apart share a token of at least {SHORTEST} characters, and {found}: "
            "export ROLLYARD_TOKEN=$(openssl rand -hex 16), the same for every part"
        )
    return Keys(run_id=_derived(token, "run id")[:8], secret=_derived(token, "session secret"), token=token)


def _derived(token: str, purpose: str) -> str:
    return hmac.new(token.encode(), f"rollyard {purpose}".encode(), hashlib.sha256).hexdigest()
