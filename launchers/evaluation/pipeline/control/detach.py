"""Continues a command in the background, once it has reported that it is ready."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import orjson

from rollyard.launchers.evaluation.pipeline.eval_state import EvalState
from rollyard.records.errors import OperatorError, RollyardError, RunError
from rollyard.records.io.exit_status import EXIT_DONE, EXIT_FAILED

Started = Callable[[EvalState], None]


def detached(work: Callable[[Started], int], folder: Path) -> int:
    """Run `work` in a new session. Once it calls its argument, print its id, folder and address as one JSON line.

    The output of `work` goes to logs/ng_eval.log in `folder`. Raises OperatorError or RunError if it fails before that.
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork() == 0:
        os.close(reader)
        _become_background()
        os._exit(_work(work, writer, folder))
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    if not answer:
        raise RunError(f"ng_eval ended during its checks; see {folder / 'logs' / 'ng_eval.log'}")
    message = orjson.loads(answer)
    if "error" in message:
        raise (OperatorError if message["refused"] else RunError)(message["error"])
    print(answer.decode(), flush=True)
    return EXIT_DONE


def _become_background() -> None:
    os.setsid()
    if os.fork() > 0:
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)


def _work(work: Callable[[Started], int], writer: int, folder: Path) -> int:
    answered = False

    def started(state: EvalState) -> None:
        nonlocal answered
        log = Path(state.folder) / "logs" / "ng_eval.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        answered = True
        _send(writer, {"id": state.id, "folder": state.folder, "address": state.address})

    try:
        status = work(started)
    except RollyardError as error:
        if not answered:
            _send(writer, {"error": str(error), "refused": isinstance(error, OperatorError)})
        print(f"ng_eval: {error}", file=sys.stderr)
        status = EXIT_FAILED
    except BaseException as error:
        if not answered:
            _send(writer, {"error": f"internal error: {type(error).__name__}: {error}", "refused": False})
        print(f"ng_eval: internal error: {type(error).__name__}: {error}", file=sys.stderr)
        status = EXIT_FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _send(writer: int, message: dict[str, object]) -> None:
    with os.fdopen(writer, "wb") as pipe:
        pipe.write(orjson.dumps(message))
