"""Prints what `ng_run --dry-run` would start."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.services.config.run_config import ServerSpec


def print_plan(specs: Sequence[ServerSpec], notes: Sequence[str], advice: Sequence[str]) -> None:
    for spec in specs:
        note = f" x {spec.settings.replicas}" if spec.settings.replicas > 1 else ""
        own = ", separate virtual environment" if spec.isolated else ""
        where = f" ({spec.origin})" if spec.origin else ""
        print(f"  {spec.name:<36} {spec.family}/{spec.implementation}{note}{own}{where}")
    for text in (*notes, *advice):
        print(f"note: {text}")
    print(f"All {len(specs)} servers are configured correctly; nothing was started (dry_run).")
