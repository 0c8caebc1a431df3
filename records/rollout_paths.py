"""RolloutPaths: the names of the files next to the output of a collection."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


def real_file(path: Path) -> Path:
    """Return the file that a link refers to, and any other path unchanged: two names of a file are one output."""
    return path.resolve() if path.is_symlink() else path


@dataclass(frozen=True)
class RolloutPaths:
    output: Path
    """If it is a link when this object is made, the file that it refers to."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "output", real_file(self.output))  # the class is frozen

    def sidecar(self, suffix: str) -> Path:
        return self.output.with_name(f"{self.output.stem}_{suffix}")

    @property
    def failures(self) -> Path:
        return self.sidecar("failures.jsonl")

    @property
    def manifest(self) -> Path:
        return self.sidecar("manifest.json")

    @property
    def status(self) -> Path:
        return self.sidecar("status.json")

    @property
    def materialized(self) -> Path:
        """File with the request bodies, which is written only if requested."""
        return self.sidecar("materialized_inputs.jsonl")

    @property
    def notes(self) -> Path:
        """File with notes, labels and corrected verdicts. No collection writes it, and none may move it away."""
        return self.sidecar("notes.jsonl")

    def sidecars(self) -> tuple[Path, ...]:
        """Return the paths of all files that a collection writes except the output."""
        return (self.manifest, self.failures, self.status, self.materialized)
