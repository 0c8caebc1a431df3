"""Arbitrary values in optional keys of rows: every reader accepts them and ignores what it cannot parse."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollyard.analysis.metrics.comparison import difference
from rollyard.analysis.metrics.curriculum import ids_of
from rollyard.analysis.metrics.load import load
from rollyard.analysis.report.document import Report, html, markdown
from rollyard.analysis.report.terminal_summary import task_rows
from rollyard.analysis.tracking import RolloutMetrics, RolloutSample
from rollyard.analysis.tracking import rows as tail_rows
from rollyard.analysis.viewer.export import export
from rollyard.analysis.viewer.library import FileIndex
from rollyard.analysis.viewer.rollout_list import SORTS, Query
from rollyard.analysis.viewer.run_file import rollout_view
from rollyard.records.jsonl import lenient
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.rollout_keys import Expected
from rollyard.records.types import Json
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.store import RolloutStore

HUGE = [2**53, 2**63, 2**64, 10**300, 10**400, -(2**63), 1e308, -1e308, 5e-324]
DEEP: Any = []
for _ in range(240):
    DEEP = [DEEP]
ODD: list[Any] = [None, True, False, "", "old", "NaN", [], {}, [None], {"turns": "x"}, {"turns": 1e300}, DEEP, *HUGE]
KEYS = (
    *("success", "token_trail", "dataset_name", "response", "timings", "agent_ref", "finish_reason", "mask_sample"),
    *("truncated", "responses_create_params", "failure_kind", "_ng_attempt_index", "_ng_code", "prompt_id", "id"),
    *("token_trace", "moves", "level", "", "\x1b[31m", "\u2028"),
)
DOTTED = (
    *("response.usage", "response.output", "response.model", "response.usage.output_tokens", "timings.total_s"),
    *("timings.model_calls", "timings.\x00_s", "token_trail.turns", "token_trail.breaks", "token_trail.segments"),
    *("agent_ref.name", "response.usage.output_tokens_details", "responses_create_params.input"),
    *("responses_create_params.instructions", "response.output.item", "responses_create_params.input.item"),
)
ITEM_KEYS = (
    *("type", "role", "content", "name", "arguments", "output", "call_id", "prompt_token_ids", "summary", "status"),
    *("generation_token_ids", "generation_log_probs", "token_trace", "encrypted_content"),
)
LEAF = (
    st.sampled_from(ODD)
    | st.integers(-9, 9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
)
VALUE = st.recursive(
    LEAF,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(ITEM_KEYS) | st.text(max_size=2), inner)
    ),
    max_leaves=6,
)
ITEM = st.dictionaries(st.sampled_from(ITEM_KEYS), VALUE | st.sampled_from(["message", "reasoning", "function_call"]))


def put(row: Json, path: str, value: Any) -> None:
    """`value` at a dotted path; `item` appends to a list."""
    *above, last = path.split(".") if path else [""]
    node: Any = row
    for key in above:
        if not isinstance(node.get(key), dict):
            node[key] = {}
        if last == "item" and key == above[-1]:
            node[key] = [value]
            return
        node = node[key]
    node[last] = value


@st.composite
def rows(draw: st.DrawFn) -> list[Json]:
    """Four rollouts of two tasks, each with unexpected values in a few places."""
    rollouts = []
    for number in range(4):
        row: Json = {}
        for path in draw(st.lists(st.sampled_from((*KEYS, *DOTTED)), max_size=4)):
            put(row, path, draw(ITEM if path.endswith("item") else VALUE))
        rollouts.append({**row, "reward": 0.5, "_ng_task_index": number // 2, "_ng_rollout_index": number % 2})
    return rollouts


def line_of(row: Json) -> bytes:
    """The row as orjson writes it, or Python's json if it is beyond orjson's limits."""
    try:
        return orjson.dumps(row)
    except TypeError:
        return json.dumps(row, ensure_ascii=False).encode()


def check_every_reader(lines: list[bytes]) -> None:
    """Pass the rows through the store and through every reader of its files."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "rollouts.jsonl"
        expected = Expected(2, 2)
        store = RolloutStore(RolloutPaths(output), {"rows": 2, "num_repeats": 2}, {}, resume=True, overwrite=False)
        store.load(None, expected)
        progress = CollectionProgress(4)
        for number, line in enumerate(lines):
            store.append((number // 2, number % 2), line)
            progress.count(lenient(line))
        store.write_status(progress.status("complete"))
        store.verify()
        store.close()
        check_resume(output, expected)
        check_profile(output)
        check_viewer(output)
        check_tracking(output)


def check_resume(output: Path, expected: Expected) -> None:
    progress = CollectionProgress(4)
    store = RolloutStore(RolloutPaths(output), {"rows": 2, "num_repeats": 2}, {}, resume=True, overwrite=False)
    store.load(progress.count, expected)
    store.close()
    assert len(store.done) == progress.measured + progress.masked == 4


def check_profile(output: Path) -> None:
    run = load(output)
    report = Report(version="0", runs=[run.profile, run.profile], differences=[difference(run, run)])
    assert markdown(report) and html(report)
    assert orjson.loads(orjson.dumps(report.model_dump()))
    assert list(task_rows(run, None, None)) or run.by_task is None
    ids_of(output)


def check_viewer(output: Path) -> None:
    library = FileIndex([("a", output), ("b", output)], workers=1)
    library.read_through()
    assert library.overview().model_dump_json()
    for run in library.runs:
        assert run.numbers()[1].profile.model_dump_json()
        for sort in SORTS:
            assert run.page(Query(sort=sort)).total == 4
        for index in range(4):
            assert rollout_view(run, run.table, index, lambda row: None).model_dump_json()
    assert export(library, lambda row: None)
    library.close()


def check_tracking(output: Path) -> None:
    metrics, sample = RolloutMetrics(), RolloutSample(3)
    for row in tail_rows(output, follow=False):
        if row is not None and metrics.add(row):
            sample.offer(row)
    assert orjson.dumps(metrics.metrics({}))
    assert orjson.dumps(sample.rows)


@pytest.mark.parametrize("path", [*KEYS, *DOTTED])
def test_every_reader_accepts_any_value_of_an_optional_key(path: str) -> None:
    for start in range(0, len(ODD), 4):
        lines = []
        for number, value in enumerate((ODD * 2)[start : start + 4]):
            row: Json = {}
            put(row, path, value)
            lines.append(
                line_of({**row, "reward": 0.5, "_ng_task_index": number // 2, "_ng_rollout_index": number % 2})
            )
        check_every_reader(lines)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows())
def test_every_reader_accepts_rows_of_any_shape(rollouts: list[Json]) -> None:
    check_every_reader([line_of(row) for row in rollouts])
