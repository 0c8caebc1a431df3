"""Tracks the policy's version, the version on each engine, and the version that sampled a turn.

A version is a name. vLLM also stores one (`/update_weight_version`), and its token-in responses report the version of
each token. vLLM calls the weights that an engine was started with `default`; for Rollyard, they are the first version.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.token_types import PolicyVersion
from rollyard.responses_api_models.chat_engine.weights.adapters import adapter_name
from rollyard.responses_api_models.chat_engine.weights.checkpoint import Checkpoint
from rollyard.responses_api_models.chat_engine.weights.model_signature import ModelSignature
from rollyard.responses_api_models.chat_engine.weights.rejections import conflict
from rollyard.services.responses.response_validity import malformed

STARTED = "default"
"""vLLM's name for the weights that an engine was started with."""
CHANGING = "changing"
"""Name of an engine's version during an update. If an engine has it at any other time, an update was interrupted."""


class PolicyVersions:
    """The versions of one policy, in order."""

    def __init__(self, first: str, *, is_exclusive: bool) -> None:
        """`is_exclusive` means that only this server changes the weights, so an unknown version is an error."""
        self.first = first
        self.folder: str | None = ""
        """The folder of the policy's weights: empty for the weights that the engines were started with, None if a
        trainer transferred them."""
        self.root = ""
        """The folder or hub name of the model that the engines were started with; empty if it cannot be read on this
        host."""
        self.invalid: set[str] = set()
        """Engines that lost their weights or are receiving new ones. They cannot load other weights
        (weight_loader.py)."""
        self._is_exclusive = is_exclusive
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
        """The number of versions before the current one; `sampled` uses it as a point in time."""
        return len(self._past) - 1

    @property
    def has_adapter(self) -> bool:
        """Whether the policy's version is an adapter."""
        return self.adapter_folder(self.now) is not None

    @property
    def engine_model(self) -> str:
        """The name under which engines serve the policy's version; empty for the name that they were started with."""
        return adapter_name(self.now) if self.has_adapter else ""

    def learn_adapter(self, version: str, checkpoint: Checkpoint) -> None:
        """Record the adapter of a version that an engine has loaded for an earlier run of this server."""
        self._checkpoints.setdefault(version, checkpoint)

    def adapter_folder(self, version: str) -> str | None:
        """Return the folder of a version that is an adapter; None for all others."""
        known = self._checkpoints.get(version)
        return known.folder if known is not None and known.is_adapter else None

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint of the policy's version; None if unknown."""
        return self._checkpoints.get(self.now)

    def started_with(self, root: str, checkpoint: Checkpoint) -> None:
        """Set the checkpoint of the first version, which engines load from `root` when they start. Later calls are
        ignored.
        """
        if self.first not in self._checkpoints:
            self.root = root
            self._checkpoints[self.first] = checkpoint

    @property
    def model(self) -> ModelSignature | None:
        """The model that the engines were started with, or that of the first update if this host cannot read it."""
        return next((known.signature for known in self._checkpoints.values() if known.signature), None)

    def fingerprint(self, version: str | None) -> str:
        """Return the fingerprint of the files of a version; empty if unknown."""
        known = self._checkpoints.get(version or "")
        return known.fingerprint if known else ""

    def check_name(self, version: str, fingerprint: str = "") -> None:
        """Raises Failure with status 409 if the name belongs to earlier weights that differ or may differ."""
        if version not in self._past or (fingerprint and fingerprint == self.fingerprint(version)):
            return
        known = self.fingerprint(version) or "not known"
        raise conflict(
            f"version {version!r} already names earlier weights (fingerprint {known}), and the new weights differ "
            f"(fingerprint {fingerprint or 'not known'}): each version needs its own name"
        )

    def advance(self, version: str, folder: str | None, checkpoint: Checkpoint | None = None) -> None:
        """Set the policy's new version and the folder that its weights were loaded from."""
        self._past.append(version)
        self.folder = folder
        if checkpoint is not None:
            self._checkpoints[version] = checkpoint

    def hold(self, url: str, version: str | None, why: str = "") -> None:
        """Record the version on the engine at `url`; None, with the reason, if its weights are unknown."""
        self._held[url] = version
        self._why[url] = f" ({why})" if why else ""

    def held(self, url: str) -> str | None:
        """Return the recorded version of an engine; the first version if none was recorded."""
        return self._held.get(url, self.first)

    def named(self, label: Any) -> str | None:
        """Return the version that vLLM's version `label` denotes; None if an update was interrupted."""
        return self.first if label == STARTED else None if label == CHANGING else str(label)

    def difference(self, urls: Iterable[str]) -> str:
        """Return which engines do not have the policy's version, as text; empty if all of them have it."""
        now = self._past[-1]
        wrong = {url: held for url in urls if (held := self._held.get(url, self.first)) != now}
        if not wrong:  # the fast path: this runs twice per model call
            return ""
        holds = (
            f"{url} has {'unknown weights' if held is None else repr(held)}{self._why.get(url, '')}"
            for url, held in wrong.items()
        )
        return f"the policy's version is {now!r}, but {', '.join(holds)}"

    def sampled(self, mark: int, spans: Any, url: str | None) -> PolicyVersion:
        """Return the version that sampled a turn, which started at `mark`. If the version changed during the turn, also
        return the last version and vLLM's `spans`.

        Raises Failure upstream_error if the engine sampled with weights that the policy did not have during the turn,
        because it was restarted or another client changed its weights.
        """
        start, now = self._past[mark], self.now
        if not isinstance(spans, list) or not spans:
            return self._named(start, now)
        if not all(isinstance(span, dict) for span in spans):
            raise malformed("has weight_versions with entries that are not objects", spans)
        spans = [{**span, "version": self.named(span.get("version"))} for span in spans]
        used = [span["version"] for span in spans]
        unexpected = [version for version in used if version not in self._past[mark:]]
        if unexpected and self._is_exclusive:
            if url:
                self.hold(url, used[-1])
            detail = f"{url} sampled with weights {unexpected[0]!r} while the policy's version was {start!r}"
            raise Failure(
                FailureKind.UPSTREAM_ERROR,
                f"{detail}; it may have been restarted, or another client may have changed its weights",
            )
        if len(spans) == 1:
            return self._named(used[0], used[0])
        return {**self._named(used[0], used[-1]), "policy_version_end": used[-1], "weight_versions": spans}

    def _named(self, start: str | None, end: str | None) -> PolicyVersion:
        named: PolicyVersion = {"policy_version": start}
        if first := self.fingerprint(start):
            named["policy_fingerprint"] = first
        if end != start:
            named["policy_version_end"] = end
            if last := self.fingerprint(end):
                named["policy_fingerprint_end"] = last
        return named


def next_version(previous: str, folder: str) -> str:
    """Return the default name for the version after `previous`: the next number if `previous` is one, else the folder's
    name.
    """
    return str(int(previous) + 1) if previous.isdecimal() else PurePath(folder).name


def checked_version(version: Any) -> str:
    """Validate a version in a request. Raises Failure bad_request unless it is a short printable name."""
    if isinstance(version, int) and not isinstance(version, bool):
        version = str(version)
    if (
        not isinstance(version, str)
        or not 0 < len(version) <= 200
        or not version.isascii()
        or not version.isprintable()
        or version != version.strip()
    ):
        detail = f"version: found {str(version)[:100]!r}; expected a short ASCII name, e.g. 'step-12'"
        raise Failure(FailureKind.BAD_REQUEST, detail)
    if version in (STARTED, CHANGING):
        raise Failure(FailureKind.BAD_REQUEST, f"version: {version!r} is reserved by engines; choose another name")
    return version
