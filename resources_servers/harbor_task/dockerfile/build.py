"""Turns a Dockerfile into a build: what to copy and run, and the folder and variables of all later commands."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rollyard.resources_servers.harbor_task.dockerfile.images import HostImage
from rollyard.resources_servers.harbor_task.dockerfile.network import network_command
from rollyard.resources_servers.harbor_task.dockerfile.parser import Instruction, instructions, substituted
from rollyard.resources_servers.harbor_task.unsupported import UnsupportedTask
from rollyard.services.sandbox.inside.box.root import SYSTEM_PATHS

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_READ_ONLY = (*SYSTEM_PATHS, "/proc", "/dev", "/sys")
_IGNORED = frozenset({"CMD", "ENTRYPOINT", "EXPOSE", "LABEL", "MAINTAINER", "STOPSIGNAL", "HEALTHCHECK"})
"""Harbor starts the container with a command of its own, so these have no effect there either."""
_SUBSTITUTED = frozenset({"COPY", "ADD", "ENV", "WORKDIR", "USER", "FROM", "VOLUME"})


@dataclass(frozen=True)
class Copy:
    """Copies files of the folder environment/."""

    instruction: Instruction
    sources: tuple[str, ...]
    target: str
    """Absolute path."""
    into_folder: bool
    """Whether the target is certainly a folder. Otherwise it is one if it exists as one."""
    mode: int | None


@dataclass(frozen=True)
class Run:
    """Runs a command."""

    instruction: Instruction
    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]


@dataclass
class Build:
    """Everything that a Dockerfile does."""

    steps: list[Copy | Run] = field(default_factory=list)
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
        self._readers: dict[str, Callable[[Instruction], None]] = {
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
        }

    def read(self, instruction: Instruction) -> None:
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
            instruction = Instruction(instruction.line, instruction.keyword, text, instruction.flags)
            if not text.strip():
                raise instruction.refuse("it has no arguments after its variables are replaced")
        reader(instruction)

    def _from(self, instruction: Instruction) -> None:
        if self.has_base:
            raise instruction.refuse("builds with several stages are not supported")
        image = instruction.text.split()[0]
        if not self._host.replaces(image, self._accepted):
            raise instruction.refuse(
                f"this image is not available; a box has the programs of this host ({self._host}). If they replace it, "
                f"set accept_images: ['{image}']"
            )
        self.has_base = True

    def _arg(self, instruction: Instruction) -> None:
        name, _, default = instruction.text.partition("=")
        self._arguments[name.strip()] = _unquoted(substituted(default.strip(), self._arguments))

    def _env(self, instruction: Instruction) -> None:
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

    def _workdir(self, instruction: Instruction) -> None:
        self.build.workdir = self._absolute(_unquoted(instruction.text), instruction)
        self.build.folders.append(self.build.workdir)

    def _volume(self, instruction: Instruction) -> None:
        for path in instruction.exec_form() or instruction.text.split():
            self.build.folders.append(self._absolute(path, instruction))

    def _copy(self, instruction: Instruction) -> None:
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

    def _run(self, instruction: Instruction) -> None:
        words = instruction.exec_form()
        if words is None and instruction.flags:
            raise instruction.refuse(f"--{min(instruction.flags)} is not supported")
        script = shlex.join(words) if words else instruction.text
        if found := network_command(script):
            raise instruction.refuse(f"`{found[1]}` needs a network, which a box does not have")
        argv = tuple(words) if words else (*self._shell, instruction.text)
        env = {**self._arguments, **self.build.env}
        self.build.steps.append(Run(instruction, argv, self.build.workdir, env))

    def _set_shell(self, instruction: Instruction) -> None:
        words = instruction.exec_form()
        if words is None:
            raise instruction.refuse('expected a list, such as ["/bin/bash", "-c"]')
        self._shell = tuple(words)

    def _user(self, instruction: Instruction) -> None:
        if instruction.text.partition(":")[0] not in ("root", "0"):
            raise instruction.refuse("a box has one user, root")

    def _absolute(self, path: str, instruction: Instruction) -> str:
        found = absolute(posixpath.join(self.build.workdir, path))
        if is_read_only(found):
            raise instruction.refuse(f"{found} is read-only in a box")
        return found


def absolute(path: str) -> str:
    """Return the path without `..` and double slashes."""
    return "/" + posixpath.normpath(path).lstrip("/")


def is_read_only(path: str) -> bool:
    """Return whether an absolute path is in a folder of the host that every box shows."""
    return any(f"{path}/".startswith(f"{folder}/") for folder in _READ_ONLY)


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
