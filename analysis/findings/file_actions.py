"""Finds what tool calls do to files, in shell commands, Python code, patches, and the arguments of editors."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import orjson

# Divides shell text into simple commands. The text is untrusted and often invalid.

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


_MAX_CHARACTERS = 20_000
_MAX_DEPTH = 4
_PATH_KEYS = frozenset({"path", "file", "file_path", "filepath", "filename", "file_name", "target_file"})
_CONTENT_KEYS = frozenset({"content", "file_text", "new_str", "new_string", "old_str", "old_string", "text"})
_OPERATION_KEYS = ("command", "operation", "action", "type", "op")
_READERS = re.compile(r"cat|less|more|head|tail|nl|base64|strings|xxd|od|diff|grep|awk|sed|jq|source|\.|patch")
_RUNNERS = re.compile(r"(?:ba|z|da)?sh|python[\d.]*|node|ruby|perl")
_PYTHON = re.compile(
    r"\bopen\s*\(\s*['\"](?P<opened>[^'\"\n]{1,300})['\"](?:\s*,\s*(?:mode\s*=\s*)?['\"](?P<mode>[rwax][bt+]*)['\"])?"
    r"|\b(?:os\.(?:remove|unlink|rename|truncate)|shutil\.(?:rmtree|move))\s*\(\s*['\"](?P<removed>[^'\"\n]{1,300})['\"]"
    r"|\bPath\s*\(\s*['\"](?P<path>[^'\"\n]{1,300})['\"]\s*\)\.(?P<method>\w{1,20})"
)
_METHODS = {"write_text": "w", "write_bytes": "w", "unlink": "d", "rename": "d", "read_text": "r", "read_bytes": "r"}
_PATCHED = re.compile(r"^(?:\*\*\* (?P<verb>Update|Delete) File: (?P<file>\S.*)|--- a/(?P<old>\S+))$", re.MULTILINE)


class Verb(StrEnum):
    READ = "read"
    """Read or run."""
    WRITE = "write"
    """Replace the content, or create the file."""
    APPEND = "append"
    EDIT = "edit"
    """Change a part of the content."""
    DELETE = "delete"
    """Delete or move."""


_OPERATIONS = {  # the first that matches
    Verb.DELETE: re.compile(r"delete|remove|unlink", re.IGNORECASE),
    Verb.READ: re.compile(r"view|read|open|\bcat\b|show|list|search|find|grep", re.IGNORECASE),
    Verb.EDIT: re.compile(r"replace|edit|patch|update|insert|modify", re.IGNORECASE),
    Verb.WRITE: re.compile(r"create|write|save", re.IGNORECASE),
}
_MODES = {"r": Verb.READ, "w": Verb.WRITE, "x": Verb.WRITE, "a": Verb.APPEND, "d": Verb.DELETE}


@dataclass(frozen=True)
class FileAction:
    """One thing that a call does to a file, as far as its text shows."""

    verb: Verb
    path: str
    """Normalized; absolute if the text says so."""
    removed: str | None = None
    """The text that an edit removes; None if that is not known."""
    added: str = ""
    """The text that is written, or the whole command if it is not known."""


def file_actions(name: str, arguments: str) -> list[FileAction]:
    """Return what a call of the tool `name` does to files. `arguments` are usually JSON."""
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        value = arguments
    return [*_of_value(name, value, 0)]


def _of_value(name: str, value: Any, depth: int) -> Iterator[FileAction]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, str):
        yield from _of_text(value[:_MAX_CHARACTERS])
    elif isinstance(value, list):
        if all(isinstance(word, str) for word in value):
            yield from _of_text(shlex.join(value)[:_MAX_CHARACTERS])
        else:
            for one in value:
                yield from _of_value(name, one, depth + 1)
    elif isinstance(value, dict):
        edited = _of_editor(name, value)
        if edited is not None:
            yield edited
        for key, one in value.items():
            if key not in _PATH_KEYS and key not in _CONTENT_KEYS:
                yield from _of_value(name, one, depth + 1)


def _of_editor(name: str, arguments: Mapping[str, Any]) -> FileAction | None:
    """Return what a call with a path does to the file; None if there is no path or the operation is not known."""
    path = next((arguments[key] for key in arguments if key in _PATH_KEYS), None)
    if not isinstance(path, str):
        return None
    stated = next((arguments[key] for key in _OPERATION_KEYS if isinstance(arguments.get(key), str)), "")
    for operation in (stated if re.fullmatch(r"\w{1,40}", stated) else "", name):
        for verb, pattern in _OPERATIONS.items():
            if operation and pattern.search(operation):
                removed = _first_text(arguments, ("old_str", "old_string")) if verb is Verb.EDIT else None
                added = _first_text(arguments, ("new_str", "new_string", "content", "file_text", "text")) or ""
                return FileAction(verb, _normal(path), "" if stated == "insert" else removed, added)
    return None


def _first_text(arguments: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    return next((text[:_MAX_CHARACTERS] for key in keys if isinstance(text := arguments.get(key), str)), None)


def _of_text(text: str) -> Iterator[FileAction]:
    yield from python_actions(text)
    patched = [*_PATCHED.finditer(text)]
    for at, found in enumerate(patched):
        hunk = text[found.end() : patched[at + 1].start() if at + 1 < len(patched) else len(text)]
        lines = hunk.split("\n")
        removed = "\n".join(line[1:] for line in lines if line.startswith("-") and not line.startswith("---"))
        added = "\n".join(line[1:] for line in lines if line.startswith("+") and not line.startswith("+++"))
        verb = Verb.DELETE if found["verb"] == "Delete" else Verb.EDIT
        yield FileAction(verb, _normal(found["file"] or found["old"]), removed, added)
    if not patched:
        yield from _of_shell(text, 0)


def python_actions(code: str) -> Iterator[FileAction]:
    """Yield what Python code does to files that it names by constants."""
    for found in _PYTHON.finditer(code):
        mode = _METHODS.get(found["method"], "") if found["method"] else (found["mode"] or "r")[0]
        verb = Verb.DELETE if found["removed"] else _MODES.get(mode)
        if verb is not None:
            yield FileAction(verb, _normal(found["opened"] or found["removed"] or found["path"]), added=code)


def _of_shell(text: str, depth: int) -> Iterator[FileAction]:
    folder, found, reads_found = "", list[str](), False
    for command in shell_commands(text):
        if command.name == "find":
            found += command.values("-name", "-path")
            reads_found |= any(map(_READERS.fullmatch, command.values("-exec")))
        elif _READERS.fullmatch(command.name) and command.arguments in ([], ["$"]):
            reads_found = True  # `find ... | xargs cat` or `cat $(find ...)`
        if command.name == "cd" and command.arguments:
            folder = posixpath.join(folder, command.arguments[0])
            continue
        if depth < 2 and _RUNNERS.fullmatch(command.name) and command.has_option("c") and command.arguments:
            yield from _of_shell(command.arguments[0], depth + 1)
            continue
        for verb, path in _of_command(command):
            yield FileAction(verb, _normal(posixpath.join(folder, path)), added=text)
    if reads_found:
        yield from (FileAction(Verb.READ, _normal(path.lstrip("*")), added=text) for path in found)


def _of_command(command: ShellCommand) -> Iterator[tuple[Verb, str]]:
    for path, appended in command.written:
        yield Verb.APPEND if appended else Verb.WRITE, path
    name, paths = command.name, command.arguments
    if name == "git" and paths:
        name, paths = {"rm": "rm", "mv": "mv", "apply": "patch"}.get(paths[0], ""), paths[1:]
    if name in ("rm", "unlink", "rmdir"):
        yield from ((Verb.DELETE, path) for path in paths)
    elif name in ("mv", "cp") and len(paths) > 1:
        yield from ((Verb.DELETE if name == "mv" else Verb.READ, path) for path in paths[:-1])
        yield Verb.WRITE, paths[-1]
    elif name in ("sed", "perl") and command.has_option("i"):
        yield from ((Verb.EDIT, path) for path in paths[1:])
    elif name in ("truncate", "tee"):
        appends = name == "tee" and command.has_option("a")
        yield from ((Verb.APPEND if appends else Verb.WRITE, path) for path in paths)
    elif name == "find" and ("-delete" in command.words or "rm" in command.words):
        yield from ((Verb.DELETE, word.strip("*")) for word in command.words[1:] if not word.startswith("-"))
    elif _READERS.fullmatch(name):
        yield from ((Verb.READ, path) for path in paths)
    elif _RUNNERS.fullmatch(name):
        yield from ((Verb.READ, path) for path in paths[:1])
    elif command.words and "/" in command.words[0]:
        yield Verb.READ, command.words[0]


def _normal(path: str) -> str:
    return posixpath.normpath(path.strip()[:1000]) if path.strip() else ""
