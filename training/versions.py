"""Names of the versions of the weights: step_000012 after 12 updates, step_000012-r1 in a later start of the run."""

from __future__ import annotations

import re
import time
from pathlib import Path

from rollyard.records.errors import RunError

FORMAT = "step_{:06d}"
_VERSION = re.compile(r"step_(\d{6,})(?:[-.].*)?")


def version_of_step(step: int) -> str:
    """Return the name of the weights after `step` updates, which is also that of their checkpoint: step_000012."""
    return FORMAT.format(step)


def updates_of(version: str | None) -> int:
    """Return the number of updates of a version, such as 12 for `step_000012` and `step_000012-r1`.

    Raises RunError if there is no version, or if it is not one of a training run: to count it as some version would let
    rollouts of any age pass.
    """
    if version is None:
        raise RunError(
            "the version of the weights that sampled a rollout is unknown, so that its age cannot be determined: set "
            "trainer_endpoints: true on the model server of the policy, and let agents call the policy through it"
        )
    if (found := _VERSION.fullmatch(version)) is None:
        raise RunError(
            f"a rollout was sampled with weights of version {version!r}; expected a version of this training run, such "
            f"as {version_of_step(0)!r}: publish the initial weights before the first step, or set policy_version: "
            f"{version_of_step(0)} on the model server of the policy"
        )
    return int(found[1])


class VersionNames:
    """Names versions. Those of two starts of a training differ, because a name is never used for two versions."""

    def __init__(self, folder: Path) -> None:
        """`folder`: where the versions are stored, also those of earlier starts."""
        again = folder.is_dir() and any(folder.iterdir())
        self._suffix = time.strftime("-r%Y%m%d%H%M%S") if again else ""

    def name(self, step: int) -> str:
        """Return the name of the version after so many updates."""
        return f"{version_of_step(step)}{self._suffix}"
