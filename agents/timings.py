"""Records how long an episode spends in each stage, and how many calls it makes."""

from __future__ import annotations

from dataclasses import dataclass, field

from rollyard.records.types import Json


@dataclass(slots=True)
class Timings:
    """Seconds per stage, and the number of calls."""

    spent: dict[str, float] = field(default_factory=dict)
    model_calls: int = 0
    tool_calls: int = 0

    def add(self, stage: str, seconds: float) -> None:
        self.spent[stage] = self.spent.get(stage, 0.0) + seconds

    def seconds(self) -> Json:
        """Return `{stage}_s` for each stage, together with the call counts."""
        seconds = {f"{stage}_s": round(spent, 6) for stage, spent in self.spent.items()}
        return {**seconds, "model_calls": self.model_calls, "tool_calls": self.tool_calls}
