"""Makes sure that only one process at a time runs an evaluation in a folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator

from rollyard.launchers.evaluation.eval_folder import EvalFolder
from rollyard.launchers.evaluation.pipeline.eval_state import EvalState, is_alive, read_state
from rollyard.records.errors import RunError

_LOCKED = (errno.EAGAIN, errno.EACCES)


@contextlib.contextmanager
def locked(folder: EvalFolder) -> Iterator[EvalState | None]:
    """Hold the folder's lock, and yield the state that an earlier evaluation left.

    Raises RunError if another evaluation is running in it. The kernel releases the lock when the process ends.
    """
    folder.own.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _LOCKED:
                raise _in_use(folder) from error
            # A file system without locks: the process in the state file decides.
        before = read_state(folder.state)
        if before is not None and before.pid != os.getpid() and is_alive(before):
            raise _in_use(folder)
        yield before
    finally:
        os.close(descriptor)


def _in_use(folder: EvalFolder) -> RunError:
    state = read_state(folder.state)
    who = f" (id {state.id}, process {state.pid} on {state.host})" if state is not None else ""
    return RunError(
        f"another ng_eval is running in {folder.own}{who}: `ng_eval status {folder.own}` shows it; wait for it, end "
        f"it with `ng_eval stop {folder.own}`, or choose another output_dir"
    )
