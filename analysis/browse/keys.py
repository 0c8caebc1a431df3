"""The keys that `?` shows, by page. They are those of the web viewer (`static/keys.js`) where both have the action."""

from __future__ import annotations

from typing import NamedTuple


class Key(NamedTuple):
    """What one or several keys do."""

    keys: str
    """As written on the keys; alternatives are separated by two spaces."""
    action: str


EVERYWHERE = (
    Key("?", "show keys"),
    Key("g r", "rollouts"),
    Key("g f", "findings"),
    Key("t", "light or dark theme"),
    Key("u  Esc", "back"),
    Key("q", "quit"),
)
LIST = (
    Key("j  k  ↓  ↑", "next, previous rollout"),
    Key("n  p  PgDn  PgUp", "next, previous page"),
    Key("Home  End", "first, last rollout"),
    Key("←  →", "scroll sideways"),
    Key("Enter", "open the rollout"),
    Key("/", "search in the rows"),
    Key("e", "expression, such as reward < 0.5"),
    Key("f", "filter by outcome, end or agent"),
    Key("s", "sort; again: descending"),
    Key("c", "columns"),
    Key("x", "clear search, expression and filter"),
    Key("[  ]", "previous, next file"),
)
ROLLOUT = (
    Key("[  ]", "previous, next rollout"),
    Key("j  k", "next, previous event"),
    Key("J  K", "next, previous turn"),
    Key("↓  ↑  PgDn  PgUp", "scroll"),
    Key("Enter", "show the whole event, or shorten it"),
    Key("/", "find"),
    Key("n  N", "next, previous match"),
    Key("m", "Markdown or original text"),
    Key("Space", "play or pause the board"),
    Key("←  →", "one move back, forward"),
    Key("Home  End", "first, last move"),
    Key("o", "the board of the optimal solution"),
)
FINDINGS = (
    Key("j  k  ↓  ↑", "next, previous finding"),
    Key("Enter", "list its rollouts"),
    Key("1  2  3", "open an example"),
    Key("d", "what is counted"),
    Key("[  ]", "previous, next file"),
)
PAGES = (("Everywhere", EVERYWHERE), ("List", LIST), ("Rollout", ROLLOUT), ("Findings", FINDINGS))
