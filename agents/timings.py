"""Timings: where an episode's time went, and how many calls it took."""

from __future__ import annotations

from dataclasses import dataclass, field

from rollyard.services.types import Json


@dataclass(slots=True)
class Timings:
    """Seconds by stage, and counts of calls."""

    spent: dict[str, float] = field(default_factory=dict)
    model_calls: int = 0
    tool_calls: int = 0

    def add(self, stage: str, seconds: float) -> None:
        """Count `seconds` to `stage`."""
        self.spent[stage] = self.spent.get(stage, 0.0) + seconds

    def seconds(self) -> Json:
        """`{stage}_s` for each stage beside the counts."""
        seconds = {f"{stage}_s": round(spent, 6) for stage, spent in self.spent.items()}
        return {**seconds, "model_calls": self.model_calls, "tool_calls": self.tool_calls}
