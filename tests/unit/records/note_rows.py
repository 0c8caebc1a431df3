"""Rollout rows whose responses differ, and records about them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from rollyard.records.note_records import AnyRecord, new_record, ref_of
from rollyard.records.notes_file import NotesFile
from rollyard.records.rollout_keys import task_key
from rollyard.records.types import Json
from tests.support.rollout_files import solved


def answered(task: int, repeat: int, text: str, success: bool = True, **more: Any) -> Json:
    """A rollout as Rollyard writes it, whose message is `text`."""
    row = solved(task, repeat, success, **more)
    row["response"]["output"] = [
        {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    ]
    task_row = {"responses_create_params": row["responses_create_params"]}
    return {**row, "_ng_task_key": task_key(task_row)}


def rows(tasks: int = 3, repeats: int = 2) -> list[Json]:
    """Rollouts with different responses; the first repeat of each task is solved."""
    numbers = itertools.product(range(tasks), range(repeats))
    return [answered(task, repeat, f"answer {task} {repeat}", repeat == 0) for task, repeat in numbers]


def record(row: Json, kind: str, author: str = "ann", **fields: Any) -> AnyRecord:
    return new_record(kind, author, ref_of(row), **fields)


def write_notes(rollouts: Path, *records: AnyRecord) -> NotesFile:
    notes = NotesFile.beside(rollouts)
    for one in records:
        notes.append(one)
    return notes
