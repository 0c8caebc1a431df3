"""Runs a trainer on a Ray cluster, as an actor that reserves GPUs."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollyard.records.errors import RunError
from rollyard.records.process_group import guarded
from rollyard.services.http.ray_address import connect
from rollyard.services.runtime import ray_actor
from rollyard.services.runtime.ray_launcher import SILENCE_S

CHUNK = 1 << 20
PAUSE_S = 1.0
WAIT_S = 15.0
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_on_ray(
    address: str,
    command: Sequence[str],
    num_gpus: float,
    here: Path,
    environ: Mapping[str, str],
    *,
    write: Callable[[bytes], None],
    print_line: Callable[[str], None],
) -> int:
    """Run a command in the folder `here` of a host of the cluster, and return its exit status.

    Waits until `num_gpus` GPUs are free; the command sees only these. `write` receives its output. SIGINT and SIGTERM
    of this process reach it as SIGTERM. What the command has started ends with it, and it ends with this process. Must
    be called in the main thread. Raises RunError if the cluster or the actor fails.
    """
    import ray

    try:
        connect(address, "a trainer on a Ray cluster")
        ray.cloudpickle.register_pickle_by_value(ray_actor)
        kind = ray.remote(num_cpus=0, num_gpus=num_gpus, max_restarts=0)(ray_actor.ProgramHost)
        actor = kind.remote()
        try:
            # The guard ends everything that the command has started, also if the actor is killed.
            started = actor.run.remote(guarded(command), str(here), dict(environ), None)
            if not ray.wait([started], timeout=WAIT_S)[0]:
                print_line(f"waiting for a host of the Ray cluster with {num_gpus:g} free GPUs")
            ray.get(started)
            # Ray's workers ignore SIGINT, and so do the processes that they start.
            with signals_to(lambda _: actor.send_to_leader.remote(int(signal.SIGTERM))):
                return _follow(ray, actor, write)
        finally:
            with contextlib.suppress(Exception):  # Ray raises if the actor or the cluster no longer exists
                ray.kill(actor)
    except (ray.exceptions.RayError, ConnectionError) as error:
        raise RunError(f"the Ray actor of the trainer failed: {str(error).strip().splitlines()[0]}") from error
    finally:
        ray.shutdown()


def _follow(ray: Any, actor: Any, write: Callable[[bytes], None]) -> int:
    offset, responded = 0, time.monotonic()
    while True:
        left_s = responded + SILENCE_S - time.monotonic()
        try:
            text, status = ray.get(actor.follow.remote(offset, CHUNK), timeout=max(left_s, 0.0))
        except ray.exceptions.ActorUnavailableError:  # a cut network returns
            if left_s < PAUSE_S:
                raise
            time.sleep(PAUSE_S)
            continue
        responded = time.monotonic()
        offset += len(text)
        write(text)
        if status is not None:
            return int(status)


@contextlib.contextmanager
def signals_to(handle: Callable[[int], None]) -> Iterator[None]:
    """Have SIGINT and SIGTERM call a function. Must be used in the main thread."""
    before = {number: signal.signal(number, lambda number, _: handle(number)) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            with contextlib.suppress(TypeError):  # a handler that was not installed from Python cannot be restored
                signal.signal(number, handler)
