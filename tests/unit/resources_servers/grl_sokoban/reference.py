"""Paths and readers for the recordings of the reference environment."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[4]
DATA = ROOT.parent / "shared" / "data" / "sokoban"

XSB = str.maketrans({" ": "_", ".": "O", "$": "X", "*": "√", "@": "P", "+": "S"})


def text(name: str) -> str:
    path = DATA / name
    if not path.is_file():
        pytest.fail(f"{path} is missing: these tests need the folder `shared` beside the repository")
    return path.read_text(encoding="utf-8")


@cache
def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text(name).splitlines()]


def rooms() -> list[dict[str, Any]]:
    return rows("reference_rooms_public.jsonl")


def trajectories() -> list[dict[str, Any]]:
    return rows("reference_trajectories_public.jsonl")


def levels(name: str) -> list[str]:
    """Return the boards of a level file in the symbols of `Room.board`, surrounded by wall."""
    blocks: list[list[str]] = [[]]
    for line in text(f"levels/{name}").splitlines():
        if line.strip() and set(line) <= set("# .$*@+"):  # titles and headings are between the levels
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return [walled(block) for block in blocks if block]


def walled(lines: list[str]) -> str:
    width = max(len(line) for line in lines)
    rim = "#" * (width + 2)
    return "\n".join([rim, *(f"#{line.ljust(width)}#" for line in lines), rim]).translate(XSB)
