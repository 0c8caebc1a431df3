"""Finds the running stack that a command should talk to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import orjson

from services.errors import Failure, FailureKind, RunError
from services.runfolder import running_heads
from services.transport import HttpTransport
from services.types import HeadFile

DEFAULT_HEAD = "http://127.0.0.1:11000"


def on_stderr(text: str) -> None:
    """Say it beside what a command prints."""
    print(text, file=sys.stderr)


async def find_run(
    transport: HttpTransport, here: Path, head: str | None, token: str | None, say: Callable[[str], None] = on_stderr
) -> HeadFile:
    """The head at `head`, else the newest run started from this folder, else whoever answers on the default port.

    `say` is told when the last of these was taken. Raises RunError saying where was looked and how to start one.
    """
    tried: list[str] = []
    if head is not None:
        url = head if "://" in head else f"http://{head}"
        candidates = [HeadFile(run_id="", url=url.rstrip("/"), pid=0, token=token)]
    else:
        candidates = running_heads(here)
        candidates.append(HeadFile(run_id="", url=DEFAULT_HEAD, pid=0, token=token))
    for candidate in candidates:
        try:
            run_id = await _run_id(transport, candidate)
        except Failure as failure:
            tried.append(f"{candidate.url}: {failure.problem.detail}")
            continue
        if candidate.run_id in ("", run_id):
            if head is None and not candidate.run_id:
                say(f"using run {run_id} at {candidate.url}: none was started from this folder")
            return candidate.model_copy(update={"run_id": run_id, "token": candidate.token or token})
        tried.append(f"{candidate.url} is another run ({run_id}) now")
    listed = "\n".join(f"  {line}" for line in tried)
    hint = "Start one with ng_run from this folder, or say where it is with +head=HOST:PORT."
    raise RunError(f"no running stack found:\n{listed}\n{hint}")


async def _run_id(transport: HttpTransport, head: HeadFile) -> str:
    headers = {"authorization": f"Bearer {head.token}"} if head.token else {}
    answer = await transport.send("GET", f"{head.url}/health", b"", headers, 5.0)
    try:
        health = orjson.loads(answer.body)
        if health["server"] != "head":
            raise Failure(FailureKind.WRONG_RUN, f"this is the server {health['server']!r}, not the head")
        return str(health["run_id"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        status = answer.status
        told = "it wants the run's token" if status == 401 else f"no head of this stack (status {status})"
        raise Failure(FailureKind.WRONG_RUN, told) from error
