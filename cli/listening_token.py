"""The token that a command requires of its callers."""

from __future__ import annotations

import os

from rollyard.records.errors import OperatorError
from rollyard.services.http.access import is_loopback


def listening_token(host: str, token: str | None, exposed: str, otherwise: str) -> str | None:
    """Return the token that callers must send; None if they need none, which is only possible on loopback.

    `exposed`: what other hosts could use, for the error. `otherwise`: what to do instead of setting a token. Raises
    OperatorError if other hosts could use it without a token.
    """
    if is_loopback(host):
        return token
    found = token or os.environ.get("ROLLYARD_TOKEN")
    if not found:
        raise OperatorError(
            f"{exposed} would be open to other hosts on {host} without a token: add --token ... or export "
            f"ROLLYARD_TOKEN=..., or {otherwise}"
        )
    return found
