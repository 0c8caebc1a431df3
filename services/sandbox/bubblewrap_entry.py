"""Starts bubblewrap; as root, becomes nobody first.

Root inside a user namespace is still root to the files outside, and its processes are not counted. Nobody, on the other
hand, may not be able to reach the Python (a home folder is often closed): so its files are first mounted where they can
be reached, in a mount namespace of our own that ends with the jail.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    # Only what stands beside this file is needed; the rest of the project may not be importable by this Python.
    sys.path.insert(0, json.loads(sys.argv[1])["root"])

from rollyard.services.sandbox.inside import libc
from rollyard.services.sandbox.inside.privileges import drop_to_unprivileged_user

_STAGE = "/tmp"


def main() -> None:
    """`{"root": ..., "files": [[source, target], ...], "before": [...], "after": [...]}`."""
    told = json.loads(sys.argv[1])
    files = [(str(source), str(target)) for source, target in told["files"]]
    try:
        program = os.open(told["before"][0], os.O_PATH)  # what is mounted over /tmp may hide it
    except OSError as error:
        sys.exit(f"{told['before'][0]} cannot be run: {error.strerror}")
    if os.getuid() == 0:
        try:
            files = _staged(files)
        except OSError as error:  # a container's root without CAP_SYS_ADMIN: the files must be readable as they are
            print(f"sandbox: files stay where they are: {error}", file=sys.stderr)
        drop_to_unprivileged_user()
    binds = [word for source, target in files for word in ("--ro-bind", source, target)]
    command = [*told["before"], *binds, *told["after"]]
    try:
        os.execve(program, command, {})
    except OSError as error:
        sys.exit(f"{command[0]} cannot be run: {error.strerror}")


def _staged(files: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The same files below a temporary file system that everybody may enter and only we have."""
    libc.unshare(libc.CLONE_NEWNS)
    libc.mount("none", "/", "none", libc.MS_REC | libc.MS_PRIVATE)
    opened = [(os.open(source, os.O_PATH), Path(source).is_dir(), target) for source, target in files]
    libc.mount("tmpfs", _STAGE, "tmpfs", libc.MS_NOSUID | libc.MS_NODEV, "mode=755")
    staged = []
    for number, (descriptor, is_folder, target) in enumerate(opened):
        place = f"{_STAGE}/{number}"
        if is_folder:
            Path(place).mkdir()
        else:
            Path(place).touch()
        libc.mount(f"/proc/self/fd/{descriptor}", place, "none", libc.MS_BIND)
        os.close(descriptor)
        staged.append((place, target))
    return staged


if __name__ == "__main__":
    main()
