"""Who the zygote is: root gives up its rights for ever, and the Python stays usable.

The user without privileges often cannot reach the Python, because it lies below a closed home folder. The standard
library is then found through this process's working directory: a path that begins there passes no closed folder.
"""

from __future__ import annotations

import os
import sys

from rollyard.services.sandbox.inside import libc

NOBODY = 65534
_HERE = "/proc/self/cwd"


def give_up_root() -> None:
    """Become a user without privileges, if this is root. Ends the process where root may not change its user."""
    if os.getuid() != 0:
        return
    library = os.path.dirname(os.__file__)  # noqa: PTH120 (pathlib is not loaded)
    os.chdir(library)
    drop_to_unprivileged_user()
    try:
        os.close(os.open(os.__file__, os.O_RDONLY))
        os.chdir("/")
    except PermissionError:
        _find_modules_here(library)


def drop_to_unprivileged_user() -> None:
    """As root: another user, in no group, without a way back. Ends the process where root may not change its user."""
    try:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except OSError as refused:  # an ordinary user who is root only in a user namespace, or root without capabilities
        try:
            libc.enter_user_namespace(user=NOBODY, group=NOBODY)
        except OSError:
            remedy = "start as an ordinary user, or allow CAP_SETUID and CAP_SETGID"
            sys.exit(f"root may not become another user here ({refused.strerror}): {remedy}")


def _find_modules_here(library: str) -> None:
    """Point the import system at the working directory, also for packages that are loaded: they have more modules."""

    def moved(path: str) -> str:
        return _HERE + path.removeprefix(library) if f"{path}/".startswith(f"{library}/") else path

    sys.path[:] = [moved(path) for path in sys.path]
    for module in list(sys.modules.values()):
        if isinstance(paths := getattr(module, "__path__", None), list):
            paths[:] = [moved(path) for path in paths]
    sys.path_importer_cache.clear()
