"""Splits a Dockerfile into instructions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rollyard.resources_servers.harbor_task.unsupported import UnsupportedTask

_DIRECTIVE = re.compile(r"#\s*(\w+)\s*=\s*(.*)")
_FLAG = re.compile(r"--([\w-]+)(?:=(\S*))?(?:\s+|$)")
_VARIABLE = re.compile(r"\\(.)|\$(?:(\w+)|\{(\w+)(?:(:[-+])((?:\\.|[^}\\])*))?\})", re.DOTALL)
_HEREDOC = re.compile(r"<<-?[\"']?\w")


@dataclass(frozen=True)
class Instruction:
    """One instruction, which may span several lines of the file."""

    line: int
    keyword: str
    """In upper case."""
    text: str
    """Everything after the keyword and its flags."""
    flags: Mapping[str, str]

    def refuse(self, reason: str) -> UnsupportedTask:
        """Return the exception that names this instruction."""
        shown = " ".join(f"{self.keyword} {self.text}".split())
        return UnsupportedTask(f"environment/Dockerfile line {self.line}: `{shown:.120}`: {reason}")

    def exec_form(self) -> list[str] | None:
        """Return the words of the JSON form, such as `["a", "b"]`; None if the text has another form."""
        if not self.text.startswith("["):
            return None
        try:
            words = json.loads(self.text)
        except ValueError:
            return None
        if not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
            raise self.refuse("expected a list of strings")
        if not words:
            raise self.refuse("the list is empty")
        return words


def instructions(text: str) -> Iterator[Instruction]:
    """Yield the instructions. Raises UnsupportedTask for here-documents, NUL, and escape characters other than `\\`."""
    if "\0" in text:
        raise UnsupportedTask("environment/Dockerfile contains a NUL character, so it is not a text file")
    for line, logical in _logical_lines(text):
        keyword, _, rest = logical.partition(" ")
        rest = rest.strip()
        flags: dict[str, str] = {}
        while found := _FLAG.match(rest):
            flags[found[1]] = found[2] or ""
            rest = rest[found.end() :]
        instruction = Instruction(line, keyword.upper(), rest.strip(), flags)
        if instruction.keyword in ("RUN", "COPY", "ADD") and _HEREDOC.search(rest):
            raise instruction.refuse("here-documents are not supported")
        yield instruction


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    pieces: list[str] = []
    begin = 0
    directives = True
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith("#"):
            directive = _DIRECTIVE.fullmatch(stripped) if directives else None
            if directive and directive[1].lower() == "escape" and directive[2].strip() != "\\":
                raise UnsupportedTask(
                    f"environment/Dockerfile line {number}: another escape character is not supported"
                )
            continue
        directives = False
        if not stripped:
            continue
        begin = begin if pieces else number
        if stripped.endswith("\\"):
            pieces.append(stripped[:-1].rstrip() + " ")
            continue
        yield begin, re.sub(r"^(\S+)\s+", r"\1 ", "".join([*pieces, stripped]))
        pieces = []
    if pieces:
        yield begin, re.sub(r"^(\S+)\s+", r"\1 ", "".join(pieces).rstrip())


def substituted(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$NAME`, `${NAME}`, `${NAME:-default}` and `${NAME:+other}`; unknown variables become empty."""

    def value(found: re.Match[str]) -> str:
        if found[1] is not None:
            return found[1] if found[1] == "$" else found[0]
        current = variables.get(found[2] or found[3], "")
        if found[4] == ":-":
            return current or found[5]
        if found[4] == ":+":
            return found[5] if current else ""
        return current

    return _VARIABLE.sub(value, text)
