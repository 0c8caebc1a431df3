"""Text from endpoints, rows, configs and file names never reaches a terminal as an escape sequence."""

from __future__ import annotations

import io
import logging
import random
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson
import pytest
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from rollyard.cli import prepare_data, reward_profile
from rollyard.cli.collect_rollouts import summary
from rollyard.cli.console import PlainLines, ProgressBar, console
from rollyard.cli.options import Options, run_command
from rollyard.cli.status import view
from rollyard.records.activity import Collection
from rollyard.records.errors import Failure, FailureKind, OperatorError, RunError
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.terminal import plain, plain_line, plain_output
from rollyard.records.types import FailureRow
from rollyard.services.head.registry_client import RunSnapshot
from rollyard.services.rollouts.progress import CollectionProgress

ATTACKS = [
    *("\x1b[31mred", "\x1b]8;;http://evil\x07link\x1b]8;;\x07", "\x1b]0;title\x07", "\x1b[2J\x1b[H", "\x1bc"),
    *("\x1b]52;c;aGk=\x07", "\x9b31m", "\x9d0;title\x9c", "\x90q\x9c", "\x85", "\x84", "over\rwritten"),
    *("back\b\b\b", "\x7f\x00\x07\x0b\x0c\x0e\x0f"),
    *("\u202egnp.exe", "\u2066\u2069\u202a\u202b\u202c\u202d", "\u2028\u2029", "\U000e0041\U000e007f", "\ud800"),
    *("[red]markup[/red]", "[link=http://evil]x[/link]", "[/]"),
]
HOSTILE = "".join(ATTACKS)
Main = Callable[[Sequence[str]], int]


def control_characters(text: str) -> str:
    """The characters of `text` that a terminal interprets instead of showing them."""
    return "".join(
        char
        for char in text
        if (ord(char) < 0x20 and char not in "\n\t")
        or 0x7F <= ord(char) < 0xA0
        or char in "\u2028\u2029\u061c\ud800"
        or 0x202A <= ord(char) <= 0x202E
        or 0x2066 <= ord(char) <= 0x2069
        or 0xE0000 <= ord(char) < 0xE0080
    )


def checked_output(capsys: pytest.CaptureFixture[str]) -> str:
    """Everything that was printed; asserts that it has no control characters."""
    out, err = capsys.readouterr()
    assert control_characters(out + err) == ""
    return out + err


def output_of(main: Main, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The output of a command with this `main`."""
    with pytest.raises(SystemExit):
        run_command("ng_test", Options, "ng_test", main, arguments)
    return checked_output(capsys)


def test_only_harmless_characters_are_left_unchanged() -> None:
    characters = "".join(
        map(chr, [*range(0x3100), *range(0xD7F0, 0xE010), *range(0xFE00, 0x10010), *range(0xE0000, 0xE0100)])
    )
    assert control_characters(plain(characters)) == ""
    assert plain("Grüße, Привет, 你好, שלום, 🎉\n\ttext") == "Grüße, Привет, 你好, שלום, 🎉\n\ttext"
    assert plain(plain(HOSTILE)) == plain(HOSTILE) and "\n" not in plain_line("a\nb\tc")


def test_escaped_json_has_the_same_value() -> None:
    rng = random.Random(7)
    for _ in range(200):
        value = ["".join(rng.choices(HOSTILE[:-8], k=9)).replace("\ud800", "")]
        assert orjson.loads(plain(orjson.dumps(value).decode())) == value


ERRORS = [
    *(OperatorError(HOSTILE), RunError(HOSTILE), OSError(2, HOSTILE, HOSTILE), ValueError(HOSTILE)),
    Failure(FailureKind.UPSTREAM_ERROR, HOSTILE, server=HOSTILE),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("debug", ["+debug=true", "+debug=false"])
def test_an_error_line_of_a_command_is_plain(error: Exception, debug: str, capsys: pytest.CaptureFixture[str]) -> None:
    def main(arguments: Sequence[str]) -> int:
        raise error

    assert "red" in output_of(main, capsys, debug)


def test_everything_that_a_command_prints_or_logs_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    def main(arguments: Sequence[str]) -> int:
        print(HOSTILE)
        print(HOSTILE, file=sys.stderr)
        sys.stdout.writelines([HOSTILE])
        handler = logging.StreamHandler()
        handler.emit(logging.LogRecord("x", logging.ERROR, "", 0, HOSTILE, None, None))
        PlainLines().print_line(HOSTILE)
        return 0

    before = sys.stdout, sys.stderr
    assert "markup" in output_of(main, capsys)
    assert (sys.stdout, sys.stderr) == before


def test_arguments_are_plain_in_error_messages(capsys: pytest.CaptureFixture[str]) -> None:
    for argument in (f"+{HOSTILE}", f"+output={HOSTILE}", HOSTILE):
        output_of(reward_profile.run, capsys, argument)


def snapshot(text: str) -> RunSnapshot:
    """The snapshot of a run in which every text is `text`."""
    failed = {"failures": {text: 3}, "failed_attempts": 3}
    status = CollectionProgress(10).status("running", note=text).model_copy(update=failed)
    row = FailureRow(
        task_index=0, rollout_index=0, attempt_index=0, agent_ref={}, failure_kind=text, server=text, status=500,
        upstream_status=None, detail=text, terminal=False, time=0.0, duration_s=0.0,
    )  # fmt: skip
    return RunSnapshot(
        run_id=text, head=text, time=time.time(), stuck=[text], note=text,
        collections=[Collection(output=text, status=status, failures=[row])],
    )  # fmt: skip


def test_the_status_of_a_run_is_plain() -> None:
    stream = io.StringIO()
    terminal = console(stream, width=100, force_terminal=False)
    terminal.print(view(snapshot(HOSTILE), terminal))
    assert "markup" in stream.getvalue() and control_characters(stream.getvalue()) == ""


def test_a_coloured_display_contains_only_its_own_escape_sequences() -> None:
    def render(text: str) -> str:
        stream = io.StringIO()
        terminal = console(stream, width=300, force_terminal=True, highlight=False)
        table = Table(title=Text(text), caption=Text(text))
        table.add_column(Text(text))
        table.add_row(Text(text, style="bold"))
        terminal.print(table, Text(text), text, markup=False)
        with Progress(TextColumn("{task.description}", markup=False), BarColumn(), console=terminal) as bar:
            bar.add_task(text, total=3)
        return stream.getvalue()

    def sequences(text: str) -> set[str]:
        return set(re.findall(r"\x1b(?:\[[0-9;?]*[A-Za-z])?", render(text)))

    assert sequences(HOSTILE) <= sequences("harmless")
    assert set(control_characters(render(HOSTILE))) <= {"\x1b", "\r"}


def test_a_line_beside_the_progress_bar_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with plain_output():
        bar = ProgressBar(3)
        bar.print_line(HOSTILE)
        bar.close()
    assert "markup" in stream.getvalue() and "\x1b[31m" not in stream.getvalue() and "\x9b" not in stream.getvalue()


def test_the_summary_of_a_collection_keeps_each_name_on_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = CollectionProgress(2)
    for name, reward in ((HOSTILE + "\nfaked", 7.0), ("b", 1.0)):
        progress.count({"reward": reward, "dataset_name": name, "agent_ref": {"name": name}})

    def main(arguments: Sequence[str]) -> int:
        summary("stopped", progress, RolloutPaths(tmp_path / "x.jsonl"), HOSTILE + "\nfaked", 0)
        return 0

    assert "\nfaked" not in output_of(main, capsys)


@pytest.mark.parametrize("kind", ["server_error", "timeout"])
def test_after_an_error_in_a_server_the_next_step_names_its_restart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    progress = CollectionProgress(2)
    progress.kinds[kind] += 1
    summary("incomplete", progress, RolloutPaths(tmp_path / "x.jsonl"), "", 0)
    assert ("restart ng_run" in capsys.readouterr().out) is (kind == "server_error")


def test_reports_of_hostile_rollouts_and_data_are_plain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = HOSTILE.replace("/", "").replace("\x00", "").replace("\ud800", "")[:60]
    text = HOSTILE.replace("\ud800", "")
    row = {
        "responses_create_params": {"input": [{"role": "user", "content": text}], "model": text},
        "response": {"model": text, "output": [], "usage": {}},
        "reward": 1.0, "finish_reason": text, "dataset_name": text, text: text, "agent_ref": {"name": text},
        "_ng_task_index": 0, "_ng_rollout_index": 0,
    }  # fmt: skip
    rollouts = tmp_path / f"{name}.jsonl"
    rollouts.write_bytes(orjson.dumps(row) + b"\n")
    failed = {"failure_kind": text, "server": text, "detail": text, "_ng_task_index": 0, "_ng_rollout_index": 1}
    RolloutPaths(rollouts).failures.write_bytes(orjson.dumps(failed) + b"\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        (tmp_path / "x.jsonl").write_bytes(rollouts.read_bytes())
        output_of(lambda arguments: reward_profile.run(["+jsonl_fpath=x.jsonl"]), capsys)
        output_of(lambda arguments: prepare_data.run(["+input_jsonl_fpath=x.jsonl"]), capsys)
        report = output_of(lambda arguments: prepare_data.run(["+input_jsonl_fpath=x.jsonl", "+json=true"]), capsys)
        assert text in orjson.loads(report)[0]["keys"]
