"""Task rows in the folder of a run, written by `prepare.py`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import orjson

from rollyard.records.io.exit_status import EXIT_DONE
from rollyard.records.io.foreground import run_foreground
from rollyard.records.io.jsonl import replace


def prepare_rows(rows: Path, *, split: str, system_prompt: str, limit: int | None, local: Path | None) -> int:
    """Write the rows and return the exit status. Rows of the same options from the hub are kept, so that an interrupted
    run can continue without a network.
    """
    selection = _selection(split, system_prompt, limit, local)
    record, wanted = rows.with_name(f"{rows.stem}_options.json"), orjson.dumps(selection)
    if not local and rows.is_file() and record.is_file() and record.read_bytes() == wanted:
        print(f"{rows} is kept, because it was written with the same options")
        return EXIT_DONE
    record.unlink(missing_ok=True)
    command = [sys.executable, "-m", "rollyard.resources_servers.gsm8k.prepare", "--output", str(rows), *selection]
    status = run_foreground(command)
    if status == EXIT_DONE:
        replace(record, wanted)
    return status


def _selection(split: str, system_prompt: str, limit: int | None, local: Path | None) -> Sequence[str]:
    selection = ["--split", split, "--system-prompt", system_prompt]
    selection += ["--limit", str(limit)] if limit else []
    return [*selection, "--local", str(local)] if local else selection
