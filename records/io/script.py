"""Runs scripts such as `prepare.py` with the same exit statuses and error messages as the commands."""

from __future__ import annotations

import argparse
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.records.io.exit_status import EXIT_DONE, exit_status

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
