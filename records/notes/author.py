"""Names the author of records that state none."""

from __future__ import annotations

import os
import pwd


def user_name() -> str:
    """Return the name of the user who runs this process, or `user 1000` if the host does not know the id."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user {os.getuid()}"
