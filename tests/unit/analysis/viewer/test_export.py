"""Exports: one file with the page and its data."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from rollyard.analysis.viewer.export import STATIC, ExportView, chosen, export, single_page
from rollyard.analysis.viewer.library import FileIndex
from rollyard.analysis.viewer.rollout_list import RolloutTable
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from tests.support.rollout_files import random_rows, row, solved, write
from tests.unit.analysis.viewer.opened_runs import no_replay, open_index

TAGGED = [row(task, 0, task / 10, tag=f"t{task % 2}", depth={"level": 9 - task}) for task in range(10)]


def of_rows(folder: Path, *files: list[Json], name: str = "x") -> FileIndex:
    return open_index(*(write(folder / f"{name}{number or ''}.jsonl", rows) for number, rows in enumerate(files)))


def element(page: str, attributes: str) -> Any:
    found = re.search(rf"<script {attributes}[^>]*>(.*?)</script>", page, re.DOTALL)
    assert found is not None
    return orjson.loads(found[1])


def embedded(page: str) -> Any:
    return element(page, 'type="application/json" id="embedded"')


def test_a_small_file_is_exported_completely_with_the_responses_of_the_server(tmp_path: Path) -> None:
    file_index = of_rows(tmp_path, random_rows(3, 2), random_rows(3, 2, seed=1))
    page = export(file_index, no_replay).decode()
    data = embedded(page)
    assert set(data) == {
        *("overview", "profiles", "findings", "notes", "pages", "stories", "attempts", "comparison", "view")
    }
    assert data["profiles"]["1"]["profile"] == file_index.runs[1].numbers()[1].profile.model_dump(mode="json")
    assert data["pages"]["0"]["total"] == len(data["pages"]["0"]["lines"]) == 6
    assert len(data["stories"]) == 12 and "1/2/1" in data["stories"]
    assert (data["comparison"]["runs"], data["comparison"]["total"]) == ([0, 1], 3)
    assert "This page contains" not in page


def test_a_large_file_is_exported_partially_with_a_note_and_complete_numbers(tmp_path: Path) -> None:
    page = export(of_rows(tmp_path, random_rows(30, 4), name="big<i>"), no_replay, limit=20).decode()
    data = embedded(page)
    assert len(data["stories"]) == len(data["pages"]["0"]["lines"]) == 20
    assert data["profiles"]["0"]["profile"]["coverage"]["measured"] == 120
    assert " 20 of 120 rollouts of big&lt;i&gt;" in page


def table_of(folder: Path, rows: list[Json]) -> RolloutTable:
    return of_rows(folder, rows).runs[0].table


def test_the_best_the_worst_and_failed_rollouts_are_selected(tmp_path: Path) -> None:
    rows = [solved(task, repeat, False) for task in range(20) for repeat in range(10)]
    for index, reward in ((150, 9.0), (160, -9.0), (170, None)):
        rows[index] = row(index // 10, 0, reward)
    table = table_of(tmp_path, rows)
    indices = chosen(table, 40)
    assert len(indices) == 40 and {150, 160, 170} <= set(indices.tolist())
    assert np.all(np.diff(indices) > 0) and len(np.unique(table.task[indices])) == 20


def test_exactly_the_limit_is_selected(tmp_path: Path) -> None:
    table = table_of(tmp_path, [row(0, 0, None), *random_rows(6, 3)[1:]])
    assert [len(chosen(table, limit)) for limit in range(1, 8)] == list(range(1, 8))


def test_no_rollout_can_close_the_embedding_element(tmp_path: Path) -> None:
    attack = "</script><script>alert(1)</script><!-- & \u2028 \u2029 ]]>"
    page = export(of_rows(tmp_path, [row(0, 0, 1.0, note=attack)]), no_replay).decode()
    assert "alert(1)</script>" not in page and "\u2028" not in page
    assert embedded(page)["stories"]["0/0/0"]["facts"]["note"] == attack


def test_the_file_fetches_nothing_and_every_script_has_the_nonce() -> None:
    page = single_page(b"{}", "")
    policy = re.search(rb'http-equiv="Content-Security-Policy" content="([^"]+)"', page[: page.index(b"</head>")])
    assert policy is not None and policy[1].startswith(b"default-src 'none'; script-src 'nonce-")
    assert not re.search(rb'<(?:link rel="stylesheet"|script[^>]* src=)', page)
    scripts = re.findall(rb"<script([^>]*)>", page)
    assert all(b"nonce=" in attributes or b"application/json" in attributes for attributes in scripts)
    assert single_page(b"{}", "") != page, "every file has its own nonce"


def test_the_import_map_covers_every_module_of_the_page() -> None:
    names = element(single_page(b"{}", "").decode(), 'type="importmap"')["imports"]
    assert set(names) == {f"page/{path.relative_to(STATIC).as_posix()}" for path in STATIC.rglob("*.js")}


def test_an_export_has_the_rollouts_columns_and_order_of_a_view(tmp_path: Path) -> None:
    view = ExportView.of("#/runs/0?sort=-depth.level&where=tag+%3D%3D+%22t1%22&columns=reward,tag&start=100&at=3")
    page = export(of_rows(tmp_path, TAGGED), no_replay, 3, view).decode()
    data = embedded(page)
    exported = data["pages"]["0"]
    assert [line["task"] for line in exported["lines"]] == [1, 3, 5]
    assert [head["path"] for head in exported["columns"]] == ["tag", "depth.level"]
    assert exported["cells"] == [["t1", 8], ["t1", 6], ["t1", 4]]
    assert data["view"] == "sort=-depth.level&columns=reward%2Ctag"
    assert re.search(r"first 3 of 5 rollouts of x .*: tag == &quot;t1&quot;; .* 10\.", page)


@pytest.mark.parametrize("text", ["where=task + 1 > 3&sort=task", "#/runs/0?where=task+%2B+1+%3E+3&sort=task"])
def test_a_view_is_typed_by_hand_or_copied_from_the_address(text: str) -> None:
    assert ExportView.of(text).where == "task + 1 > 3"


@pytest.mark.parametrize(
    ("text", "named"), [("nothing", "nothing"), ("sorted=reward", "sorted"), ("where=reward <", "reward <"),
                        ("columns=(nothing)", r"\(nothing\)")],
)  # fmt: skip
def test_a_view_that_means_nothing_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    file_index = of_rows(tmp_path, TAGGED)
    with pytest.raises(OperatorError, match=rf"view.*{named}"):
        export(file_index, no_replay, 3, ExportView.of(text))
