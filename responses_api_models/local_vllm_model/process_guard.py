"""Kills a vLLM process as soon as the engine's reaper has died.

A copy of this file is on the engine's PYTHONPATH as `sitecustomize`, which every Python process runs first. It handles
the case in which the reaper and all other Rollyard processes are killed at once with kill -9. vLLM's processes do not
exit with their parent: after kill -9 of the API server, EngineCore and its workers keep their memory indefinitely
(measured with 0.32). vLLM's plug-ins are loaded late, and never by the coordinator of a data-parallel engine, so they
cannot replace this.
"""

import fcntl
import os
import signal
import sys
import threading
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def watch(folder: str) -> None:
    """Wait in a thread until the reaper dies, then kill this process. Do the same in every forked process.

    The reaper holds a lock on the file `alive` in the engine's folder, which the kernel releases when the reaper dies.
    """
    _begin(folder)
    os.register_at_fork(after_in_child=lambda: _begin(folder))


def _begin(folder: str) -> None:
    threading.Thread(target=_end_without_reaper, args=(folder,), name="rollyard-guard", daemon=True).start()


def _end_without_reaper(folder: str) -> None:
    try:
        descriptor = os.open(os.path.join(folder, "alive"), os.O_RDONLY)  # noqa: PTH118  # runs standalone in any Python
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except OSError:
        pass  # the reaper removes the folder when it exits
    os.kill(os.getpid(), signal.SIGKILL)


def _run_hidden_sitecustomize(folder: str) -> None:
    """Run the environment's own `sitecustomize`, which this file shadows, if there is one."""
    own = os.path.join(folder, "guard")  # noqa: PTH118
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if path != own])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    _folder = os.environ.get("ROLLYARD_ENGINE")
    if _folder:
        # Python's resource trackers exit on their own, after they have unlinked the shared memory of the others.
        if not any("resource_tracker" in word for word in sys.orig_argv):
            watch(_folder)
        _run_hidden_sitecustomize(_folder)
