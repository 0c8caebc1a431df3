"""Divides shell text into simple commands. The text is untrusted and often invalid."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

_HEREDOC = re.compile(r"<<-?\s*\\?['\"]?(\w{1,40})['\"]?")
_PREFIX = re.compile(r"[A-Za-z_]\w*=.*|sudo|env|time|then|do|else|!|\{|nohup|xargs", re.DOTALL)
_SEPARATORS = frozenset(";&|()")
_MAX_JOINED = 20
"""Number of lines that a quoted word may span."""


@dataclass
class ShellCommand:
    """A command with its arguments. A file that it reads as its input is one of its arguments."""

    words: list[str] = field(default_factory=list)
    written: list[tuple[str, bool]] = field(default_factory=list)
    """Files to which the output is redirected, and whether it is appended."""

    @property
    def name(self) -> str:
        return self.words[0].rpartition("/")[2] if self.words else ""

    @property
    def arguments(self) -> list[str]:
        """The words after the name, without options."""
        return [word for word in self.words[1:] if not word.startswith("-")]

    def values(self, *options: str) -> list[str]:
        """The words that follow one of these options."""
        return [value for option, value in zip(self.words, self.words[1:], strict=False) if option in options]

    def has_option(self, letter: str) -> bool:
        """Return whether an option such as `-i`, `-ni` or `-i.bak` contains the letter."""
        return any(re.match(rf"-\w*{letter}", word) for word in self.words[1:])


def shell_commands(text: str) -> Iterator[ShellCommand]:
    """Yield the commands of a text in order. Contents of here-documents are left out."""
    for line in _lines(text):
        command = ShellCommand()
        redirection = ""
        for word in line:
            if word and set(word) <= _SEPARATORS:
                yield command
                command, redirection = ShellCommand(), ""
            elif word and set(word) <= set("<>&|"):
                redirection = word
            elif redirection:
                if redirection == "<":
                    command.words.append(word)
                elif ">" in redirection and not redirection.endswith("&"):
                    command.written.append((word, ">>" in redirection))
                redirection = ""
            elif command.words or not _PREFIX.fullmatch(word):
                command.words.append(word)
        yield command


def _lines(text: str) -> Iterator[list[str]]:
    """Yield the words of each line. A line with an open quote is continued by the next ones."""
    end, pending, joined = "", "", 0
    for line in text.replace("\\\n", " ").splitlines():
        if end:
            end = "" if line.strip() == end else end
            continue
        pending = f"{pending}\n{line}" if pending else line
        try:
            words = _words(pending)
        except ValueError:  # a quote is open
            joined += 1
            if joined < _MAX_JOINED:
                continue
            words = []
        if found := _HEREDOC.search(pending):
            end = found[1]
        pending, joined = "", 0
        yield words


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    return list(lexer)
