"""Versions: which version the policy has, which each engine holds, which a turn was sampled from.

A version is a name. vLLM keeps one too (`/update_weight_version`) and says in token-in answers which tokens were
sampled under which; its name for the weights that an engine was started with is `default`, ours is the first version.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

from services.errors import Failure, FailureKind
from services.types import Json

STARTED = "default"
"""vLLM's name for the weights that an engine was started with."""
CHANGING = "changing"
"""The label of an engine in the middle of an update: who finds it there later knows that the update was broken off."""


class Versions:
    """The versions of one policy, in order."""

    def __init__(self, first: str, *, ours: bool) -> None:
        self.first = first
        self.folder: str | None = ""
        """Where the policy's weights can be loaded from: empty for those that the engines were started with, None when
        a trainer sent them its own way."""
        self.spoilt: set[str] = set()
        """Engines that have lost their weights, or are just exchanging them, and so can load no others (loader.py)."""
        self._ours = ours
        self._past = [first]
        self._held: dict[str, str | None] = {}

    @property
    def now(self) -> str:
        """The policy's version."""
        return self._past[-1]

    @property
    def mark(self) -> int:
        """A point in time, for `sampled`."""
        return len(self._past) - 1

    def advance(self, version: str, folder: str | None) -> None:
        """The policy has another version from now on, from that folder."""
        self._past.append(version)
        self.folder = folder

    def hold(self, url: str, version: str | None) -> None:
        """The engine at `url` holds that version; None when nobody knows what it holds."""
        self._held[url] = version

    def held(self, url: str) -> str | None:
        """What that engine holds; the first version when nothing else is known of it."""
        return self._held.get(url, self.first)

    def named(self, label: Any) -> str | None:
        """A label of vLLM's as a version of ours."""
        return self.first if label == STARTED else None if label == CHANGING else str(label)

    def difference(self, urls: Iterable[str]) -> str:
        """Which engines do not hold the policy's version; empty when all do."""
        now = self._past[-1]
        wrong = {url: held for url in urls if (held := self._held.get(url, self.first)) != now}
        if not wrong:  # at every model call, twice
            return ""
        holds = (f"{url} holds {'unknown weights' if held is None else repr(held)}" for url, held in wrong.items())
        return f"the policy is version {now!r}, but {', '.join(holds)}"

    def sampled(self, mark: int, spans: Any, url: str | None) -> Json:
        """Of a turn that began at `mark`: its version; its last one where that is another, and vLLM's own `spans` then.

        Raises Failure upstream_error when the engine sampled with weights that the policy did not have in that time: it
        was restarted, or somebody changed it past this server.
        """
        begun, now = self._past[mark], self.now
        if not isinstance(spans, list) or not spans:
            return {"policy_version": begun, **({"policy_version_end": now} if now != begun else {})}
        spans = [{**span, "version": self.named(span.get("version"))} for span in spans]
        used = [span["version"] for span in spans]
        strange = [version for version in used if version not in self._past[mark:]]
        if strange and self._ours:
            if url:
                self.hold(url, used[-1])
            told = f"{url} sampled with weights {strange[0]!r} while the policy was version {begun!r}"
            raise Failure(FailureKind.UPSTREAM_ERROR, f"{told}: was it restarted, or changed past this server?")
        if len(spans) == 1:
            return {"policy_version": used[0]}
        return {"policy_version": used[0], "policy_version_end": used[-1], "weight_versions": spans}


def following(previous: str, folder: str) -> str:
    """The version that comes after `previous` where nobody names one: the next number, else the folder's name."""
    return str(int(previous) + 1) if previous.isdecimal() else PurePath(folder).name


def checked(version: Any) -> str:
    """A version as a request names it. Raises Failure bad_request."""
    if isinstance(version, int) and not isinstance(version, bool):
        version = str(version)
    if (
        not isinstance(version, str)
        or not 0 < len(version) <= 200
        or not version.isascii()
        or not version.isprintable()
    ):
        told = f"version: found {str(version)[:100]!r}; a short name of plain letters is expected, e.g. 'step-12'"
        raise Failure(FailureKind.BAD_REQUEST, told)
    if version in (STARTED, CHANGING):
        raise Failure(FailureKind.BAD_REQUEST, f"version: {version!r} means something else to an engine; take another")
    return version
