"""Turns a Dockerfile into a build: what to copy and run, and the folder and variables of all later commands."""

from __future__ import annotations

import json
import os
import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from rollyard.services.sandbox.inside.private_tree import SYSTEM_PATHS

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_READ_ONLY = (*SYSTEM_PATHS, "/proc", "/dev", "/sys")
_IGNORED = frozenset({"CMD", "EXPOSE", "LABEL", "MAINTAINER", "STOPSIGNAL", "HEALTHCHECK"})
"""Harbor starts the container with a command of its own, so these have no effect there either."""
_SUBSTITUTED = frozenset({"COPY", "ADD", "ENV", "WORKDIR", "USER", "FROM", "VOLUME"})


@dataclass(frozen=True)
class Copy:
    instruction: DockerInstruction
    sources: tuple[str, ...]
    target: str
    """Absolute path."""
    into_folder: bool
    """Whether the target is certainly a folder. Otherwise it is one if it exists as one."""
    mode: int | None


@dataclass(frozen=True)
class RunInstruction:
    instruction: DockerInstruction
    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]


@dataclass
class Build:
    steps: list[Copy | RunInstruction] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    """Folders to create first."""
    env: dict[str, str] = field(default_factory=lambda: {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8"})
    workdir: str = "/"


def read_build(text: str, host: HostImage, accepted: Sequence[str]) -> Build:
    """Read a Dockerfile. Raises UnsupportedTask with the first instruction that is invalid or cannot be done here."""
    reader = _Reader(host, accepted)
    for instruction in instructions(text):
        reader.read(instruction)
    if not reader.has_base:
        raise UnsupportedTask("environment/Dockerfile has no FROM instruction")
    return reader.build


class _Reader:
    def __init__(self, host: HostImage, accepted: Sequence[str]) -> None:
        self.build = Build()
        self.has_base = False
        self._host = host
        self._accepted = accepted
        self._arguments: dict[str, str] = {}
        self._shell: tuple[str, ...] = ("/bin/sh", "-c")
        self._readers: dict[str, Callable[[DockerInstruction], None]] = {
            "FROM": self._from,
            "ARG": self._arg,
            "ENV": self._env,
            "WORKDIR": self._workdir,
            "COPY": self._copy,
            "ADD": self._copy,
            "RUN": self._run,
            "SHELL": self._set_shell,
            "USER": self._user,
            "VOLUME": self._volume,
            "ENTRYPOINT": self._entrypoint,
        }

    def read(self, instruction: DockerInstruction) -> None:
        if instruction.keyword in _IGNORED:
            return
        if (reader := self._readers.get(instruction.keyword)) is None:
            raise instruction.refuse("this instruction is not supported")
        if not self.has_base and instruction.keyword not in ("FROM", "ARG"):
            raise instruction.refuse("expected FROM before it")
        if not instruction.text:
            raise instruction.refuse("it has no arguments")
        if instruction.keyword in _SUBSTITUTED:
            text = substituted(instruction.text, {**self._arguments, **self.build.env})
            instruction = DockerInstruction(instruction.line, instruction.keyword, text, instruction.flags)
            if not text.strip():
                raise instruction.refuse("it has no arguments after its variables are replaced")
        reader(instruction)

    def _from(self, instruction: DockerInstruction) -> None:
        if self.has_base:
            raise instruction.refuse("builds with several stages are not supported")
        image = instruction.text.split()[0]
        if not self._host.replaces(image, self._accepted):
            raise instruction.refuse(
                f"this image is not available; a box has the programs of this host ({self._host}). If they replace it, "
                f"set accept_images: ['{image}']"
            )
        self.has_base = True

    def _arg(self, instruction: DockerInstruction) -> None:
        name, _, default = instruction.text.partition("=")
        self._arguments[name.strip()] = _unquoted(substituted(default.strip(), self._arguments))

    def _env(self, instruction: DockerInstruction) -> None:
        if re.match(r"[^\s=]+=", instruction.text):
            try:
                words = shlex.split(instruction.text)
            except ValueError as error:
                raise instruction.refuse(str(error)) from error
            if any("=" not in word for word in words):
                raise instruction.refuse("expected NAME=value")
            self.build.env |= dict(word.split("=", 1) for word in words)
        else:
            name, _, value = instruction.text.partition(" ")
            if "=" in name or not value.strip():
                raise instruction.refuse("expected NAME=value")
            self.build.env[name] = _unquoted(value.strip())

    def _workdir(self, instruction: DockerInstruction) -> None:
        self.build.workdir = self._absolute(_unquoted(instruction.text), instruction)
        self.build.folders.append(self.build.workdir)

    def _volume(self, instruction: DockerInstruction) -> None:
        for path in instruction.exec_form() or instruction.text.split():
            self.build.folders.append(self._absolute(path, instruction))

    def _copy(self, instruction: DockerInstruction) -> None:
        unknown = instruction.flags.keys() - {"chown", "chmod", "link"}
        if unknown:
            raise instruction.refuse(f"--{min(unknown)} is not supported")
        words = instruction.exec_form() or instruction.text.split()
        if len(words) < 2:
            raise instruction.refuse("expected a source and a target")
        *sources, target = words
        for source in sources:
            if re.match(r"[a-z]+://|git@", source):
                raise instruction.refuse("a box has no network")
            if instruction.keyword == "ADD" and re.search(r"\.(tar|tgz|tbz2|txz|tar\.\w+)$", source):
                raise instruction.refuse("archives are not extracted; use COPY and RUN tar")
        chmod = instruction.flags.get("chmod", "")
        if chmod and not re.fullmatch(r"[0-7]{3,4}", chmod):
            raise instruction.refuse("expected --chmod with an octal number, such as 755")
        into_folder = target.endswith(("/", "/.")) or target == "." or len(sources) > 1
        path = self._absolute(target, instruction)
        self.build.steps.append(Copy(instruction, tuple(sources), path, into_folder, int(chmod, 8) if chmod else None))

    def _run(self, instruction: DockerInstruction) -> None:
        words = instruction.exec_form()
        if words is None and instruction.flags:
            raise instruction.refuse(f"--{min(instruction.flags)} is not supported")
        script = shlex.join(words) if words else instruction.text
        if found := network_command(script):
            raise instruction.refuse(f"`{found[1]}` needs a network, which a box does not have")
        argv = tuple(words) if words else (*self._shell, instruction.text)
        env = {**self._arguments, **self.build.env}
        self.build.steps.append(RunInstruction(instruction, argv, self.build.workdir, env))

    def _set_shell(self, instruction: DockerInstruction) -> None:
        if (words := instruction.exec_form()) is None:
            raise instruction.refuse('expected a list, such as ["/bin/bash", "-c"]')
        self._shell = tuple(words)

    def _user(self, instruction: DockerInstruction) -> None:
        if instruction.text.partition(":")[0] not in ("root", "0"):
            raise instruction.refuse("a box has one user, root")

    def _entrypoint(self, instruction: DockerInstruction) -> None:
        if instruction.text != "[]":
            raise instruction.refuse("a box does not run it; a container does (boxes: docker)")

    def _absolute(self, path: str, instruction: DockerInstruction) -> str:
        found = absolute(posixpath.join(self.build.workdir, path))
        if is_read_only(found):
            raise instruction.refuse(f"{found} is read-only in a box")
        return found


def absolute(path: str) -> str:
    return "/" + posixpath.normpath(path).lstrip("/")


def is_read_only(path: str) -> bool:
    """Return whether an absolute path is in a folder of the host that every box shows."""
    return any(f"{path}/".startswith(f"{folder}/") for folder in _READ_ONLY)


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


_DIRECTIVE = re.compile(r"#\s*(\w+)\s*=\s*(.*)")
_FLAG = re.compile(r"--([\w-]+)(?:=(\S*))?(?:\s+|$)")
_VARIABLE = re.compile(r"\\(.)|\$(?:(\w+)|\{(\w+)(?:(:[-+])((?:\\.|[^}\\])*))?\})", re.DOTALL)
_HEREDOC = re.compile(r"<<-?[\"']?\w")


@dataclass(frozen=True)
class DockerInstruction:
    line: int
    keyword: str
    """In upper case."""
    text: str
    """Everything after the keyword and its flags."""
    flags: Mapping[str, str]

    def refuse(self, reason: str) -> UnsupportedTask:
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


def instructions(text: str) -> Iterator[DockerInstruction]:
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
        instruction = DockerInstruction(line, keyword.upper(), rest.strip(), flags)
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
                reason = f"environment/Dockerfile line {number}: another escape character is not supported"
                raise UnsupportedTask(reason)
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


_OS_RELEASE = Path("/etc/os-release")
_FIELD = re.compile(r"^(\w+)=[\"']?(.*?)[\"']?$", re.MULTILINE)
_REGISTRY = re.compile(r"^(?:docker\.io/(?:library/)?|library/)")
_VARIANTS = frozenset({"slim"})


@dataclass(frozen=True)
class HostImage:
    """What this host is, in the words of image names."""

    distribution: str
    """Such as `debian`."""
    versions: frozenset[str]
    """Version and code name, such as `12` and `bookworm`."""
    python: str
    """Version of /usr/bin/python3, such as `3.11`; empty if there is none."""

    def __str__(self) -> str:
        python = f" with Python {self.python}" if self.python else " without Python"
        return f"{self.distribution} {' or '.join(sorted(self.versions))}{python}"

    def replaces(self, image: str, accepted: Sequence[str]) -> bool:
        """Return whether the host has the image's distribution or Python in the same version, or `accepted` matches."""
        name = _REGISTRY.sub("", image)
        if any(fnmatchcase(one, pattern) for pattern in accepted for one in (name, image)):
            return True
        base, _, tag = name.partition("@")[0].partition(":")
        words = [word for word in tag.split("-") if word not in _VARIANTS]
        if base == self.distribution:
            return len(words) == 1 and words[0] in self.versions
        if base == "python" and self.python and words:
            return words[0] == self.python and all(word in self.versions for word in words[1:])
        return False


def host_image() -> HostImage:
    try:
        fields = dict(_FIELD.findall(_OS_RELEASE.read_text()))
    except OSError:
        fields = {}
    versions = frozenset(filter(None, (fields.get("VERSION_ID"), fields.get("VERSION_CODENAME"))))
    found = re.search(r"python(3\.\d+)$", os.path.realpath("/usr/bin/python3"))
    return HostImage(fields.get("ID", "unknown"), versions, found[1] if found else "")


_BEGIN = r"(?:^|[;&|(`{]|\$\(|\b(?:sudo|then|do|else|exec|time|env|nohup)\s)\s*(?:\w+=\S*\s+)*"
_WORDS = (
    r"(?:apt-get|apt|aptitude|apk|yum|dnf|pacman|brew|snap|add-apt-repository"
    r"|pip3?(?:\.\d+)?|pipx|uv|uvx|poetry|conda|mamba|npm|npx|yarn|pnpm|bun|gem|bundle|cargo\s+(?:install|add)|rustup"
    r"|go\s+(?:get|install|mod\s+download)|curl|wget|git\s+(?:clone|fetch|pull)|ssh|scp|rsync|docker)"
)
_COMMAND = re.compile(rf"{_BEGIN}({_WORDS}|python3?(?:\.\d+)?\s+-m\s+pip)(?=\s|$)", re.MULTILINE)
_LOCAL = re.compile(r"(?:curl|wget)\b[^;&|\n]*(?:localhost|127\.0\.0\.1|--version|\bfile://)")


def network_command(script: str) -> tuple[int, str] | None:
    """Return the line number and the name of the first command of a shell script that needs a network; None if none.

    Requests to this machine itself are allowed. A command that is hidden from this search fails when it runs.
    """
    for number, line in enumerate(script.splitlines(), start=1):
        if line.lstrip().startswith("#"):
            continue
        found = _COMMAND.search(line)
        if found and not _LOCAL.search(line):
            return number, " ".join(found[1].split())
    return None


class UnsupportedTask(Exception):
    """The task folder is invalid, or needs what a box does not have. The message names the file and the instruction."""
