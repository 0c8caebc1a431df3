"""Versions: which version the policy has, which each engine holds, which a turn was sampled from.

A version is a name. vLLM keeps one too (`/update_weight_version`) and says in token-in answers which tokens were
sampled under which; its name for the weights that an engine was started with is `default`, ours is the first version.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

from rollyard.responses_api_models.chat_engine.weights.checkpoint import Checkpoint
from rollyard.responses_api_models.chat_engine.weights.model_signature import ModelSignature
from rollyard.responses_api_models.chat_engine.weights.rejections import conflict
from rollyard.services.errors import Failure, FailureKind
from rollyard.services.responses.response_validity import malformed
from rollyard.services.rollout_types import PolicyVersion

STARTED = "default"
"""vLLM's name for the weights that an engine was started with."""
CHANGING = "changing"
"""The label of an engine in the middle of an update: who finds it there later knows that the update was broken off."""


class PolicyVersions:
    """The versions of one policy, in order."""

    def __init__(self, first: str, *, ours: bool) -> None:
        self.first = first
        self.folder: str | None = ""
        """Where the policy's weights can be loaded from: empty for those that the engines were started with, None when
        a trainer sent them its own way."""
        self.root = ""
        """What the engines were started with, as they name it; empty where that is not visible here."""
        self.invalid: set[str] = set()
        """Engines that have lost their weights, or are just exchanging them, and so can load no others (loader.py)."""
        self._ours = ours
        self._past = [first]
        self._held: dict[str, str | None] = {}
        self._why: dict[str, str] = {}
        self._checkpoints: dict[str, Checkpoint] = {}

    @property
    def now(self) -> str:
        """The policy's version."""
        return self._past[-1]

    @property
    def mark(self) -> int:
        """A point in time, for `sampled`."""
        return len(self._past) - 1

    @property
    def checkpoint(self) -> Checkpoint | None:
        """What the policy's version was loaded from; None where that is not known."""
        return self._checkpoints.get(self.now)

    def started_with(self, root: str, checkpoint: Checkpoint) -> None:
        """The first version is what engines load from `root` when they start; the first account of it counts."""
        if self.first not in self._checkpoints:
            self.root = root
            self._checkpoints[self.first] = checkpoint

    @property
    def model(self) -> ModelSignature | None:
        """The model that the engines were started with, or that of the first update where it is not visible here."""
        return next((known.profile for known in self._checkpoints.values() if known.profile), None)

    def fingerprint(self, version: str | None) -> str:
        """Of the files that a version was loaded from; empty where they were not seen."""
        known = self._checkpoints.get(version or "")
        return known.fingerprint if known else ""

    def check_name(self, version: str, fingerprint: str = "") -> None:
        """Raises Failure 409: the name belongs to weights that are others, or may be."""
        if version not in self._past or (fingerprint and fingerprint == self.fingerprint(version)):
            return
        known = self.fingerprint(version) or "not known"
        raise conflict(
            f"version {version!r} names weights that the policy had before (fingerprint {known}), and these are others "
            f"({fingerprint or 'not known'}): each version needs a name of its own"
        )

    def advance(self, version: str, folder: str | None, checkpoint: Checkpoint | None = None) -> None:
        """The policy has another version from now on, from that folder."""
        self._past.append(version)
        self.folder = folder
        if checkpoint is not None:
            self._checkpoints[version] = checkpoint

    def hold(self, url: str, version: str | None, why: str = "") -> None:
        """The engine at `url` holds that version; None when its weights are not known, and why."""
        self._held[url] = version
        self._why[url] = f" ({why})" if why else ""

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
        holds = (
            f"{url} holds {'unknown weights' if held is None else repr(held)}{self._why.get(url, '')}"
            for url, held in wrong.items()
        )
        return f"the policy is version {now!r}, but {', '.join(holds)}"

    def sampled(self, mark: int, spans: Any, url: str | None) -> PolicyVersion:
        """Of a turn that began at `mark`: its version; its last one where that is another, and vLLM's own `spans` then.

        Raises Failure upstream_error when the engine sampled with weights that the policy did not have in that time: it
        was restarted, or somebody changed it past this server.
        """
        begun, now = self._past[mark], self.now
        if not isinstance(spans, list) or not spans:
            return self._named(begun, now)
        if not all(isinstance(span, dict) for span in spans):
            raise malformed("has weight_versions that are not spans", spans)
        spans = [{**span, "version": self.named(span.get("version"))} for span in spans]
        used = [span["version"] for span in spans]
        strange = [version for version in used if version not in self._past[mark:]]
        if strange and self._ours:
            if url:
                self.hold(url, used[-1])
            told = f"{url} sampled with weights {strange[0]!r} while the policy was version {begun!r}"
            raise Failure(FailureKind.UPSTREAM_ERROR, f"{told}: was it restarted, or changed past this server?")
        if len(spans) == 1:
            return self._named(used[0], used[0])
        return {**self._named(used[0], used[-1]), "policy_version_end": used[-1], "weight_versions": spans}

    def _named(self, begun: str | None, end: str | None) -> PolicyVersion:
        named: PolicyVersion = {"policy_version": begun}
        if first := self.fingerprint(begun):
            named["policy_fingerprint"] = first
        if end != begun:
            named["policy_version_end"] = end
            if last := self.fingerprint(end):
                named["policy_fingerprint_end"] = last
        return named


def next_version(previous: str, folder: str) -> str:
    """The version that comes after `previous` where nobody names one: the next number, else the folder's name."""
    return str(int(previous) + 1) if previous.isdecimal() else PurePath(folder).name


def checked_version(version: Any) -> str:
    """A version as a request names it. Raises Failure bad_request."""
    if isinstance(version, int) and not isinstance(version, bool):
        version = str(version)
    if (
        not isinstance(version, str)
        or not 0 < len(version) <= 200
        or not version.isascii()
        or not version.isprintable()
        or version != version.strip()
    ):
        told = f"version: found {str(version)[:100]!r}; a short name of plain letters is expected, e.g. 'step-12'"
        raise Failure(FailureKind.BAD_REQUEST, told)
    if version in (STARTED, CHANGING):
        raise Failure(FailureKind.BAD_REQUEST, f"version: {version!r} means something else to an engine; take another")
    return version
