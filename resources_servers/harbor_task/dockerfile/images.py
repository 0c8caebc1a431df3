"""Decides whether this host's programs can replace a base image."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

_OS_RELEASE = Path("/etc/os-release")
_FIELD = re.compile(r"^(\w+)=[\"']?(.*?)[\"']?$", re.MULTILINE)
_PREFIXES = ("docker.io/library/", "docker.io/", "library/")
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
        name = _short(image)
        if any(fnmatchcase(one, pattern) for pattern in accepted for one in (name, image)):
            return True
        base, _, tag = name.partition("@")[0].partition(":")
        words = [word for word in tag.split("-") if word not in _VARIANTS]
        if base == self.distribution:
            return len(words) == 1 and words[0] in self.versions
        if base == "python" and self.python and words:
            return words[0] == self.python and all(word in self.versions for word in words[1:])
        return False


def host_image(os_release: Path = _OS_RELEASE, python: str = "/usr/bin/python3") -> HostImage:
    """Describe this host."""
    try:
        fields = dict(_FIELD.findall(os_release.read_text()))
    except OSError:
        fields = {}
    versions = frozenset(filter(None, (fields.get("VERSION_ID"), fields.get("VERSION_CODENAME"))))
    found = re.search(r"python(3\.\d+)$", os.path.realpath(python))
    return HostImage(fields.get("ID", "unknown"), versions, found[1] if found else "")


def _short(image: str) -> str:
    for prefix in _PREFIXES:
        if image.startswith(prefix):
            return image.removeprefix(prefix)
    return image
