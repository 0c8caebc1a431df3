"""Starts bubblewrap; if run as root, switches to the user nobody first.

Root inside a user namespace still has root's access to files outside, and the process limit does not apply to it. The
user nobody, however, often cannot access the interpreter, for example because it is in a private home folder. The
interpreter's files are therefore first mounted at accessible paths, in a private mount namespace that disappears with
the jail.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    # Only the modules next to this file are needed; the rest of the project may not be importable by this interpreter.
    # The standard library comes first: the folder may be a site-packages, with backports of its modules.
    sys.path.append(json.loads(sys.argv[1])["root"])

from rollyard.services.sandbox.inside import libc
from rollyard.services.sandbox.inside.privileges import drop_to_unprivileged_user

_STAGE = "/tmp"


def main() -> None:
    """Run the command that the first argument describes.

    It has the form `{"root": ..., "files": [[source, target], ...], "before": [...], "after": [...]}`.
    """
    plan = json.loads(sys.argv[1])
    files = [(str(source), str(target)) for source, target in plan["files"]]
    try:
        program = os.open(plan["before"][0], os.O_PATH)  # the tmpfs mounted over /tmp may hide it
    except OSError as error:
        sys.exit(f"{plan['before'][0]} cannot be run: {error.strerror}")
    if os.getuid() == 0:
        try:
            files = _mount_accessibly(files)
        except (
            OSError
        ) as error:  # root in a container without CAP_SYS_ADMIN, so the files must be readable at their own paths
            print(f"sandbox: using Python's files at their original paths: {error}", file=sys.stderr)
        drop_to_unprivileged_user()
    binds = [word for source, target in files for word in ("--ro-bind", source, target)]
    command = [*plan["before"], *binds, *plan["after"]]
    try:
        os.execve(program, command, {})
    except OSError as error:
        sys.exit(f"{command[0]} cannot be run: {error.strerror}")


def _mount_accessibly(files: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Bind-mount the files under a private tmpfs that every user can access. Return the new (source, target) pairs."""
    libc.unshare(libc.CLONE_NEWNS)
    libc.mount("none", "/", "none", libc.MS_REC | libc.MS_PRIVATE)
    opened = [(os.open(source, os.O_PATH), Path(source).is_dir(), target) for source, target in files]
    libc.mount("tmpfs", _STAGE, "tmpfs", libc.MS_NOSUID | libc.MS_NODEV, "mode=755")
    staged = []
    for number, (descriptor, is_folder, target) in enumerate(opened):
        staged_path = f"{_STAGE}/{number}"
        if is_folder:
            Path(staged_path).mkdir()
        else:
            Path(staged_path).touch()
        libc.mount(f"/proc/self/fd/{descriptor}", staged_path, "none", libc.MS_BIND)
        os.close(descriptor)
        staged.append((staged_path, target))
    return staged


if __name__ == "__main__":
    main()
