"""Builds the response with a run's profile and charts."""

from __future__ import annotations

from rollyard.analysis.charts.profile_charts import profile_charts
from rollyard.analysis.viewer.api.api_records import Numbers
from rollyard.analysis.viewer.api.run_links import RunLinks
from rollyard.analysis.viewer.index.run_file import RunFile


def numbers_of(run: RunFile) -> Numbers:
    """Return the metrics and the charts of the rows read so far."""
    end, found = run.numbers()
    return Numbers(indexed=end, profile=found.profile, charts=profile_charts(found.profile, RunLinks(run.number)))
