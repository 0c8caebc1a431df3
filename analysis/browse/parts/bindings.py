"""Writes down which keys a page or a widget has, without a footer, which 80 columns have no room for."""

from __future__ import annotations

from collections.abc import Mapping

from textual.binding import Binding, BindingType


def bindings(actions: Mapping[str, str], *, before_widgets: Mapping[str, str] | None = None) -> list[BindingType]:
    """Return bindings of keys to actions. `before_widgets`: keys that the page takes before the focused widget."""
    return [
        *(Binding(keys, action, show=False) for keys, action in actions.items()),
        *(Binding(keys, action, show=False, priority=True) for keys, action in (before_widgets or {}).items()),
    ]
