"""The run and the programs of docs/other-stacks.md, on free ports."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.support.commands import command, ng_run
from tests.support.doc_pages import commands, files, page, programs, sections
from tests.support.processes import free_port

PAGE = sections(page("other-stacks.md"))["Serve Rollyard's servers to other clients"]
CONFIG = "configs/served.yaml"


async def test_the_programs_of_the_page_print_what_they_say(tmp_path: Path) -> None:
    ports = {port: str(free_port()) for port in re.findall(r"port: (\d+)", PAGE)}

    def moved(text: str) -> str:
        for documented, free in ports.items():
            text = text.replace(documented, free)
        return text

    (tmp_path / "configs").mkdir()
    (tmp_path / CONFIG).write_text(moved(files(PAGE)[CONFIG]))
    (line,) = commands(PAGE)
    async with ng_run(*line[1:], "+colocate=true", "+head_port=0", cwd=tmp_path):
        program = moved("\n".join(programs(PAGE)))
        done = await command(sys.executable, "-c", program, cwd=tmp_path)
    assert done.out.splitlines()[:2] == ["1.0 42", "1.0"], done.err
    assert done.out.splitlines()[2].startswith(("end_turn ['text']", "tool_use ['tool_use']"))
