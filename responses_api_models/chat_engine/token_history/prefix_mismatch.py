"""Finds the first difference between the recorded ids of a turn and the prompt of the next turn."""

from __future__ import annotations

from rollyard.records.token_types import PrefixMismatch

EXCERPT = 8
"""Maximum number of ids recorded from each sequence, starting at the mismatch."""


def first_difference(expected: list[int], found: list[int]) -> int | None:
    """Return the first position at which `found` differs from `expected`; None if `found` begins with `expected`."""
    if found[: len(expected)] == expected:
        return None
    return next((at for at, pair in enumerate(zip(expected, found, strict=False)) if pair[0] != pair[1]), len(found))


def find_prefix_mismatch(expected: list[int], prompt: list[int], reason: str) -> PrefixMismatch | None:
    """Return a record of the mismatch, with its `reason` and the first difference; None if the prefix matches."""
    at = first_difference(expected, prompt)
    if at is None:
        return None
    return {
        "reason": reason,
        "position": at,
        "expected_length": len(expected),
        "prompt_length": len(prompt),
        "expected": expected[at : at + EXCERPT],
        "found": prompt[at : at + EXCERPT],
    }
