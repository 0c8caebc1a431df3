"""ng_viewer as a user starts it: a process, its URL, its end."""

from __future__ import annotations

import contextlib
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.commands import BIN, environment

DEADLINE_S = 60.0


@contextlib.contextmanager
def viewing(paths: Sequence[Path], cwd: Path) -> Iterator[str]:
    """The URL of a viewer of these files; stopped at the end as by Ctrl-C."""
    asked = f"+jsonl_fpath=[{','.join(map(str, paths))}]"
    process = subprocess.Popen(
        [BIN / "ng_viewer", asked, "+port=0"], cwd=cwd, env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said: queue.Queue[str] = queue.Queue()
    reader = threading.Thread(target=lambda: said.put(process.stdout.readline()))  # type: ignore[union-attr]
    reader.start()
    try:
        yield said.get(timeout=DEADLINE_S).strip()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0
        reader.join()
        process.stdout.close()


def exported(paths: Sequence[Path], out: Path, *more: str) -> Path:
    """One HTML file of these files."""
    asked = f"+jsonl_fpath=[{','.join(map(str, paths))}]"
    subprocess.run(
        [BIN / "ng_viewer", asked, f"+export={out}", *more],
        cwd=out.parent,
        env=environment(),
        check=True,
        timeout=DEADLINE_S,
        stdout=subprocess.DEVNULL,
    )
    return out
