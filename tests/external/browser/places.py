"""The addresses of all pages, in a viewer with the files of `recordings`."""

from __future__ import annotations

PLACES = {
    "overview": "#/",
    "list": "#/runs/0",
    "values": "#/runs/0?facet=reward&where=reward+%3C+5",
    "findings": "#/runs/0/findings",
    "rollout": "#/runs/0/tasks/0/0",
    "tokens": "#/runs/2/tasks/0/1",
    "attacks": "#/runs/4/tasks/10/0",
    "compare": "#/compare/0/1",
    "series": "#/series",
    "side by side": "#/side-by-side/0/3/1/1/3/1",
    "live": "#/live",
    "nowhere": "#/nowhere",
}
