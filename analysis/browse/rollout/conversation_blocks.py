"""Turns the view of a rollout into blocks: its verdict, the conversation, failed attempts and other fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from rollyard.analysis.browse.blocks.block import MAX_LINES, Block, Kind
from rollyard.analysis.browse.text.visible import value_text
from rollyard.analysis.report.formatting import NOTHING, seconds
from rollyard.analysis.viewer.api_records import Attempt, Event, RolloutView, VerdictValue

_TITLES = {
    "system": ("System", "soft"),
    "user": ("User", "first"),
    "reasoning": ("Reasoning", "thought"),
    "answer": ("Answer", "ink"),
    "call": ("Tool call", "second"),
    "result": ("Result", "result"),
    "failure": ("Failed here", "bad"),
    "other": ("Other", "soft"),
}
_LINES = {"system": 3, "failure": 8, "reasoning": 25, "call": 25, "result": 25}
_ROLES = {
    "expected": "Expected",
    "extracted": "Extracted",
    "outcome": "",
    "reason": "Reason",
    "tests": "Tests",
    "component": "Reward",
    "limit": "Limit",
}
_COLOURS = {"expected": "good", "limit": "bad"}
_PROSE = {"system", "user", "reasoning", "answer"}


def blocks_of(view: RolloutView, until_failure: Mapping[int, Sequence[Event]]) -> list[Block]:
    """Return the blocks of a rollout, in the order of the page. `until_failure`: what had been said in failed attempts,
    by their positions in `view.attempts`.
    """
    return [
        *_verdict(view.verdict),
        *_conversation(view.events),
        *(block for at, one in enumerate(view.attempts) for block in _attempt(one, until_failure.get(at, ()))),
        *_facts(view),
    ]


def turn_starts(blocks: list[Block]) -> list[int]:
    """Return the first block of the conversation and of each of its turns."""
    starts: list[int] = []
    for at, block in enumerate(blocks):
        if block.key == "event" and (not starts or block.turn != blocks[starts[-1]].turn):
            starts.append(at)
    return starts


def _verdict(verdict: tuple[VerdictValue, ...]) -> Iterator[Block]:
    pairs = tuple((_label(one), _value(one), _COLOURS.get(one.role, "")) for one in verdict if not _says_nothing(one))
    if pairs:
        yield Block("Verdict", "first", kind="pairs", pairs=pairs)


def _says_nothing(one: VerdictValue) -> bool:
    return (one.role == "limit" and not one.value) or (one.role != "extracted" and one.value in (None, ""))


def _label(one: VerdictValue) -> str:
    return one.label if one.role == "outcome" or one.role in one.label.lower() else f"{_ROLES[one.role]}: {one.label}"


def _value(one: VerdictValue) -> str:
    if isinstance(one.value, str):
        return one.value or "(empty)"
    return value_text(one.value) if one.value is not None else "none"


def _conversation(events: Sequence[Event]) -> Iterator[Block]:
    call = -1
    for event in events:
        call += event.speaker == "call"
        yield _event(event, call if event.speaker == "call" else None)


def _event(event: Event, call: int | None) -> Block:
    title, colour = _TITLES[event.speaker]
    is_prompt = event.speaker == "user" and event.turn == 0
    notes = [f"reward {event.reward:+.4g}"] if event.reward is not None else []
    if event.turn and event.speaker != "result":
        notes.append(f"turn {event.turn}")
    kind: Kind = "prose" if event.speaker in _PROSE else "structured" if event.speaker != "other" else "verbatim"
    return Block(
        title=f"{title}: {event.name}" if event.speaker == "failure" else f"{title} {event.name}".rstrip(),
        colour=colour,
        text=event.text,
        kind=kind,
        note="  ".join(notes),
        turn=event.turn,
        call=call,
        lines=_LINES.get(event.speaker, MAX_LINES),
        keep_end=is_prompt,
        key="event",
    )


def _attempt(attempt: Attempt, said: Sequence[Event]) -> Iterator[Block]:
    when = f"{datetime.fromtimestamp(attempt.when):%Y-%m-%d %H:%M:%S}" if attempt.when > 0 else ""
    yield Block(
        title=f"Failed attempt {attempt.attempt + 1}: {attempt.kind} at {attempt.server or NOTHING}",
        colour="bad",
        text=attempt.detail,
        kind="verbatim",
        note=f"after {seconds(attempt.seconds)}  {when}".strip(),
        lines=8,
        key="attempt",
    )
    for block in _conversation(said):
        yield replace(
            block,
            title=block.title if block.colour == "bad" else f"Until then: {block.title}",
            call=None,
            key="attempt",
        )


def _facts(view: RolloutView) -> Iterator[Block]:
    pairs = tuple((key, value_text(value) or NOTHING, "") for key, value in view.facts.items())
    if pairs:
        yield Block("Other fields of the row", "soft", kind="pairs", pairs=pairs, lines=0, key="facts")
