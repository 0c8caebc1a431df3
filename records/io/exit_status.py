"""Converts exceptions to the exit statuses of commands and scripts."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from rollyard.records.errors import Failure, OperatorError, RunError
from rollyard.records.io.terminal import plain_output

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


def exit_status(command: str, work: Callable[[], int], *, debug: bool = False) -> int:
    """Run `work` and return the exit status. An exception is printed to standard error as a short message.

    `debug`: print its traceback as well.
    """
    with plain_output():
        return _run(command, work, debug=debug)


def _run(command: str, work: Callable[[], int], *, debug: bool) -> int:
    try:
        status = work()
        sys.stdout.flush()
    except OperatorError as error:
        status = _failed(command, error, debug, EXIT_USAGE)
    except BrokenPipeError:
        print(f"{command}: stopped because its output was closed", file=sys.stderr)
        status = EXIT_FAILED
    except (RunError, Failure, OSError) as error:
        status = _failed(command, error, debug, EXIT_FAILED)
    except Exception as error:
        bug = RunError(f"internal error: {type(error).__name__}: {error} (--debug shows where)")
        status = _failed(command, bug.with_traceback(error.__traceback__), debug, EXIT_FAILED)
    except KeyboardInterrupt:
        print(f"{command}: interrupted", file=sys.stderr)
        status = EXIT_INTERRUPTED
    if status != EXIT_DONE:
        _flush_output()
    return status


def _flush_output() -> None:
    """Flush standard output. If that fails, discard the output; otherwise Python would exit with a different status."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _failed(command: str, error: Exception, debug: bool, status: int) -> int:
    _flush_output()  # in a log of both streams, the error comes after the lines that were printed before it
    if debug:
        print("".join(traceback.format_exception(error)), end="", file=sys.stderr)  # print_exception may colour it
    if isinstance(error, OperatorError):
        print(f"{command}: {error}\nTry '{command} --help'.", file=sys.stderr)
    else:
        print(f"{command}: {_format_error(error)}", file=sys.stderr)
    return status


def _format_error(error: Exception) -> str:
    """Format an error without the system's error number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else f"read or write failed: {error.strerror}"
    return str(error)
