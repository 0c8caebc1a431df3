"""The walk-throughs of docs/: write each file, run each command and each program like a reader."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

import rollyard
from rollyard.cli.collect_rollouts import CollectOptions
from rollyard.cli.options import read_options
from rollyard.records.data_files import INSTALLED
from tests.support.commands import command, in_this_process, in_thread, ng_run
from tests.support.doc_pages import commands, files, page, programs, sections, write_files

ENVIRONMENTS = sections(page("environments.md"))
AGENTS = sections(page("agents.md"))
WALKS = {
    "exact_match": (ENVIRONMENTS["A single turn: exact match"], [1.0] * 4),
    "guess": (ENVIRONMENTS["Tools: number guessing"], [0.0] * 4 + [1.0] * 4),
    "nearest": (ENVIRONMENTS["Turn by turn: the nearest number"], [0.98] * 4 + [1.0] * 4),
    "agent": (AGENTS["Write an agent"], None),
    "program": (AGENTS["A program as the agent"], None),
    "model server": (AGENTS["Write a model server"], [-1.0] * 4 + [10.9]),
}
"""Text of the walk-through and the rewards that it states; None: every puzzle is solved."""
SMOKE = "exact_match"
"""The walk-through that CI always follows, with servers in processes as on the page; those of the others share one."""


@pytest.mark.parametrize(
    "walk", [pytest.param(walk, marks=pytest.mark.smoke if walk == SMOKE else ()) for walk in WALKS]
)
async def test_the_commands_of_a_walk_through_give_its_rewards_show_them_in_the_viewer_and_pass_its_test(
    here: Path, capsys: pytest.CaptureFixture[str], walk: str
) -> None:
    text, rewards = WALKS[walk]
    write_files(text, here)
    typed = [words for words in commands(text) if words[0] != "ng_init"]
    assert [words[0] for words in typed[:3]] == ["ng_run", "ng_collect_rollouts", "ng_viewer"]
    run, collect, viewer, *tests = typed
    faster = () if walk == SMOKE else ("+colocate=true",)
    async with ng_run(*run[1:], *faster, "+head_port=0", cwd=here):
        collected = await command(*collect, cwd=here)
    assert collected.status == 0, collected.err
    output = read_options(CollectOptions, collect[1:])[0].output_jsonl_fpath
    rows = list(rollyard.read_rollouts(here / output))
    if rewards is None:
        assert all(row["success"] for row in rows)
    else:
        assert sorted(row["reward"] for row in rows) == pytest.approx(rewards)
    shown = await in_thread(*viewer, "+export=page.html", capsys=capsys)
    assert shown.status == 0, shown.err
    assert f'"measured":{len(rows)}' in (here / "page.html").read_text()
    for test in tests:
        tested = await command(*test, cwd=here)
        assert tested.status == 0, tested.out


@pytest.mark.parametrize(("walk", "limit"), [("exact_match", 15), ("guess", 35)])
def test_an_environment_with_config_and_rows_has_few_lines(walk: str, limit: int) -> None:
    written = {path: text for path, text in files(WALKS[walk][0]).items() if "/tests/" not in path}
    assert {Path(path).suffix for path in written} == {".py", ".yaml", ".jsonl"}
    lines = [line for text in written.values() for line in text.splitlines() if line.strip()]
    assert len(lines) <= limit


def test_the_init_commands_of_the_pages_create_folders(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = [words for name in ("environments.md", "agents.md") for words in commands(page(name))]
    init = [words for words in typed if words[0] == "ng_init"]
    assert len(init) == 3
    for words in init:
        done = in_this_process(*words, capsys=capsys)
        assert done.status == 0, done.err
    assert {path.parent.name for path in here.glob("*/*/app.py")} == {"my_env", "my_agent", "my_model"}


def test_the_programs_of_the_python_page_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for number, program in enumerate(programs(page("python-api.md"))):
        file = here / f"program_{number}.py"
        file.write_text(program)
        runpy.run_path(str(file), run_name="__main__")
        printed.append(capsys.readouterr().out)
    start, rows_in_memory, read, test = printed
    assert start.startswith("complete 10 ") and read.startswith("10 of 10\n")
    assert (rows_in_memory, test) == ("4 rollouts\n", "")


def test_the_environment_of_the_readme_passes_its_test() -> None:
    (program,) = programs((INSTALLED / "README.md").read_text())
    defined: dict[str, Any] = {}
    exec(compile(program, "README.md", "exec"), defined)
    (test,) = (value for name, value in defined.items() if name.startswith("test_"))
    test()


async def test_the_tutorial_leads_from_an_empty_folder_to_the_gate(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = page("tutorial.md")
    init, *typed = (words for words in commands(text) if words[0] != "pip")
    assert (await in_thread(*init, capsys=capsys)).status == 0
    write_files(text, here)
    test, doctor, first, base, viewer, second, trained, compare, gate = typed
    for words in (test, doctor):
        done = await command(*words, cwd=here)
        assert done.status == 0, done.out + done.err
    for run, collect in ((first, base), (second, trained)):
        async with ng_run(*run[1:], "+colocate=true", "+head_port=0", cwd=here):
            collected = await command(*collect, cwd=here)
        assert "80 of 80" in collected.out, collected.err
    for words in ([*viewer, "+export=page.html"], compare, gate):
        done = await in_thread(*words, capsys=capsys)
        assert done.status == 0, done.err
    assert done.out.startswith("GO:")
    refused = await in_thread(*gate[:-2], capsys=capsys)
    assert refused.status == 2, "the page says that the gate refuses without the option"
