"""Runs scripts such as `prepare.py` with the same exit statuses and error messages as the commands."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from rollyard.records.errors import Failure, OperatorError, RunError, did_you_mean
from rollyard.records.terminal import plain_output

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


_OPTION = re.compile(r"(--|\+\+?|)([A-Za-z][\w-]*)(?:=(.*))?", re.DOTALL)
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")


class ScriptParser(argparse.ArgumentParser):
    """Argument parser that raises OperatorError instead of exiting the program."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Accept an option however it is written: `--key-name`, `--key_name`, `+key_name=value`, or `key_name=value` if
        the script has only options.
        """
        given = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args([*self._rewritten(given)], namespace)

    def _rewritten(self, given: Sequence[str]) -> Iterator[str]:
        known = {option.lstrip("-").replace("-", "_"): option for option in self._option_string_actions}
        only_options = all(action.option_strings for action in self._actions)
        words = deque(given)
        while words:
            word = words.popleft()
            if word == "--":
                yield from (word, *words)
                return
            found = _OPTION.fullmatch(word)
            name = found[2].replace("-", "_") if found and (found[1] or only_options) else ""
            value = found[3] if found else None
            if name not in known and name.startswith("no_") and found and found[1] == "--" and value is None:
                action = self._option_string_actions.get(known.get(name[3:], ""))
                if action is not None and action.nargs == 0:
                    continue
            option = known.get(name)
            if not found or not option or (found[1] != "--" and value is None):
                yield word
                continue
            action = self._option_string_actions[option]
            if value is None and words and (words[0].lower() in _values(action) or _is_negative(words[0], action)):
                value = words.popleft()
            elif value in ("0", "1") and action.nargs == 0:
                value = "true" if value == "1" else "false"
            negative = f"--no-{option.lstrip('-')}"
            if value is not None and value.lower() in _values(action):  # null is the default
                if value.lower() in _TRUE:
                    yield option
                elif value.lower() in _FALSE and negative in self._option_string_actions:
                    yield negative
            else:
                yield option if value is None else f"{option}={value}"

    def error(self, message: str) -> NoReturn:
        """Called by argparse for invalid options."""
        unknown = re.search(r"unrecognized arguments: (--|\+\+?|)([^\s=]+)", message)
        names = [option[2:] for option in self._option_string_actions if option.startswith("--")]
        hint = did_you_mean(unknown[2].replace("_", "-"), names) if unknown else ""
        if unknown and unknown[1] != "--":
            raise OperatorError(message + hint.replace("-", "_").replace(" '", f" '{unknown[1]}"))
        raise OperatorError(message + hint.replace(" '", " '--"))


def _values(action: argparse.Action) -> tuple[str, ...]:
    """Return the values of an option that argparse does not know."""
    return (*_TRUE, *_FALSE, "null") if action.nargs == 0 else ("null",)


def _is_negative(word: str, action: argparse.Action) -> bool:
    """Return whether a word is a negative number, such as -1e-3, that argparse takes for an option."""
    return action.nargs is None and bool(re.fullmatch(r"-\d*\.?\d+(e[+-]?\d+)?", word, re.IGNORECASE))


def run_script(main: Callable[[], int | None]) -> NoReturn:
    """Run a script's `main` and exit with the same statuses as a command.

    They are 0 (done), 1 (failed), 2 (wrong usage) and 130 (interrupted).
    """
    sys.exit(exit_status(Path(sys.argv[0]).name, lambda: main() or EXIT_DONE))


def positive(text: str) -> int:
    """Parse the value of an option, which must be an integer of 1 or more."""
    return _integer(text, 1)


def not_negative(text: str) -> int:
    """Parse the value of an option, which must be an integer of 0 or more."""
    return _integer(text, 0)


def _integer(text: str, least: int) -> int:
    try:
        if (value := int(text)) >= least:
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text} is not an integer of {least} or more")


_FORWARDED = (signal.SIGINT, signal.SIGTERM)


def run_foreground(command: Sequence[str]) -> int:
    """Run a command and return its exit status; 128 plus the signal's number if a signal ended it.

    `subprocess.run` kills its child a quarter of a second after Ctrl-C, so that a command could not end what it has
    started. Here, the command has a process group of its own and gets each SIGINT and SIGTERM of this process once.
    Must be called in the main thread.
    """
    pending: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def forward(number: int, frame: FrameType | None) -> None:
        if process is None:
            pending.append(number)
        else:
            process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
        for number in pending:
            process.send_signal(number)
        status = process.wait()
    finally:
        for number, handler in before.items():
            with contextlib.suppress(TypeError):  # a handler that was not installed from Python cannot be restored
                signal.signal(number, handler)
    return 128 - status if status < 0 else status


def own_command(name: str, *arguments: str) -> list[str]:
    """Return the command line of a command such as `ng_run`, in this Python environment, wherever its scripts are."""
    return [sys.executable, "-P", "-m", "rollyard.cli.entry", name, *arguments]
