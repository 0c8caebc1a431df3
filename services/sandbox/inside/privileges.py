"""Drops root irrevocably while keeping Python usable.

An unprivileged user often cannot access the interpreter, for example because it is in a private home folder. The
standard library is then imported through /proc/self/cwd, because such paths do not pass through the private folder.
"""

from __future__ import annotations

import os
import sys

from rollyard.services.sandbox.inside import libc

NOBODY = 65534
_VIA_CWD = "/proc/self/cwd"


def drop_root() -> None:
    """If running as root, switch to an unprivileged user. Exits if root is not allowed to change its user."""
    if os.getuid() != 0:
        return
    stdlib = os.path.dirname(os.__file__)  # noqa: PTH120 (pathlib is not loaded)
    os.chdir(stdlib)
    drop_to_unprivileged_user()
    try:
        os.close(os.open(os.__file__, os.O_RDONLY))
        os.chdir("/")
    except PermissionError:
        _import_via_cwd(stdlib)


def drop_to_unprivileged_user() -> None:
    """Switch irrevocably from root to an unprivileged user. Exits if root is not allowed to change its user."""
    try:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except OSError as refused:  # root only in a user namespace, or without capabilities
        try:
            libc.enter_user_namespace(user=NOBODY, group=NOBODY)
        except OSError:
            remedy = "start as an unprivileged user, or allow CAP_SETUID and CAP_SETGID"
            sys.exit(f"root cannot switch to another user here ({refused.strerror}): {remedy}")


def _import_via_cwd(stdlib: str) -> None:
    """Redirect imports to the working directory, including those of packages that have already been loaded."""

    def moved(path: str) -> str:
        return _VIA_CWD + path.removeprefix(stdlib) if f"{path}/".startswith(f"{stdlib}/") else path

    sys.path[:] = [moved(path) for path in sys.path]
    for module in list(sys.modules.values()):
        if isinstance(paths := getattr(module, "__path__", None), list):
            paths[:] = [moved(path) for path in paths]
    sys.path_importer_cache.clear()
