"""Any field of a row as column, filter, facet and group, and the fields that explain a reward."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollyard.analysis.metrics.load import load
from rollyard.analysis.viewer.field_routes import field_router
from rollyard.analysis.viewer.fields import requested, verdict_of
from rollyard.analysis.viewer.library import FileIndex
from tests.support.rollout_files import row, write, write_failures
from tests.unit.analysis.viewer.opened_runs import get_json, open_index, viewer_client

LARGE = 1234567890123456789
NOTHING_WRONG = {"error": "", "hint": ""}


def played(task: int, repeat: int) -> dict[str, Any]:
    answers = {"expected_answer": str(task), "extracted_answer": None if repeat else str(task)}
    tags = {"tag": "odd" if task % 2 else "even", "judge": {"score": repeat / 2, "text": "a, b"}}
    return row(task, repeat, float(repeat == 0), calls=1 + task, success=repeat == 0, **answers, **tags)


ROWS = [played(task, repeat) for task in range(6) for repeat in range(3)]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> FileIndex:
    path = write(tmp_path_factory.mktemp("fields") / "x.jsonl", ROWS)
    write_failures(path, [(9, 0, "timeout")])
    return open_index(path)


@pytest.fixture(scope="module")
def client(opened: FileIndex) -> httpx.AsyncClient:
    return viewer_client(opened, field_router(opened.find))


async def get(client: httpx.AsyncClient | Path, path: str, status: int = 200, **params: Any) -> Any:
    """The response of a viewer, or of one that is opened for a file."""
    if isinstance(client, Path):
        index = open_index(client)
        client = viewer_client(index, field_router(index.find))
    return await get_json(client, str(httpx.URL(f"/api/runs/0/{path}", params=params)), status)


@pytest.mark.parametrize("where", ['tag == "odd" and judge.score > 0', "reward < 1 and tool_calls > 3", "success"])
async def test_the_list_selects_the_same_rollouts_as_a_report(
    client: httpx.AsyncClient, opened: FileIndex, where: str
) -> None:
    page = await get(client, "rollouts", where=where)
    expected = load(opened.runs[0].path, where=where).columns
    keys = list(zip(expected.task.tolist(), expected.repeat.tolist(), strict=True))
    assert ([(line["task"], line["repeat"]) for line in page["lines"]], page["searched"]) == (keys, 1)


async def test_the_list_is_sorted_by_any_field_with_missing_values_last(client: httpx.AsyncClient) -> None:
    page = await get(client, "rollouts", sort="-judge.score", columns="judge.score")
    assert [head["path"] for head in page["columns"]] == ["judge.score"]
    assert [cells[0] for cells in page["cells"]] == [1.0] * 6 + [0.5] * 6 + [0.0] * 6 + [None]


async def test_the_list_shows_the_prompt_and_the_verdict_unless_columns_are_named(client: httpx.AsyncClient) -> None:
    page = await get(client, "rollouts", task=3)
    assert [head["label"] for head in page["columns"]] == ["prompt", "expected answer", "extracted answer"]
    assert page["cells"] == [["play 3", "3", "3"], ["play 3", "3", None], ["play 3", "3", None]]


@pytest.mark.parametrize(
    ("path", "name", "text", "told"),
    [
        ("rollouts", "where", "reward <", "at the end"),
        ("rollouts", "sort", "reward + 1", "a field"),
        ("rollouts", "sort", "", "sort"),
        ("rollouts", "sort", "-", "sort"),
        ("rollouts", "columns", "(nothing)", "a column"),
        ("facet", "key", "1", "a field"),
    ],
)
async def test_an_invalid_expression_is_refused_in_words(
    client: httpx.AsyncClient, path: str, name: str, text: str, told: str
) -> None:
    assert told in (await get(client, path, 422, **{name: text}))["detail"]


async def test_the_check_of_an_expression_names_fields_that_no_row_has(client: httpx.AsyncClient) -> None:
    found = await get(client, "expression", text="tool_call > 3")
    assert found["error"] == "" and "tool_call;" in found["hint"] and found["hint"].endswith("tool_calls")
    assert (await get(client, "expression", text="reward <"))["error"]
    assert await get(client, "expression", text="judge.score > 0 and tag in ['odd']") == NOTHING_WRONG


async def test_keys_are_those_of_the_rows_without_the_conversation(client: httpx.AsyncClient) -> None:
    found = {key["path"]: key["kind"] for key in (await get(client, "keys"))["keys"]}
    assert {"judge.score": "number", "tag": "text", "response.usage.input_tokens": "number"}.items() <= found.items()
    assert not any(path.startswith(("response.output", "responses_create_params.input")) for path in found)


async def test_a_facet_counts_values_and_missing_ones(client: httpx.AsyncClient) -> None:
    found = await get(client, "facet", key="extracted_answer")
    assert (found["missing"], found["distinct"], len(found["values"])) == (12, 6, 6)
    numbers = await get(client, "facet", key="judge.score", where='tag == "odd"')
    assert (numbers["low"], numbers["median"], numbers["high"]) == (0.0, 0.5, 1.0)
    assert sum(bar["rollouts"] for bar in numbers["histogram"]) == numbers["rollouts"] == 9


def test_values_of_rows_that_are_appended_later_are_read_as_well(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", ROWS[:4])
    index = open_index(path)
    run = index.runs[0]
    before, _ = run.fields.values.named(run.listing.columns, run.listed, "tag")
    write(path, ROWS)
    while len(run.table) < len(ROWS):
        index.read_through()
    after, share = run.fields.values.named(run.listing.columns, run.listed, "tag")
    assert (len(before), share, after.objects()) == (4, 1.0, [each["tag"] for each in ROWS])


async def test_large_integers_are_counted_grouped_selected_and_shown_exactly(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [row(task, 0, 1.0, seed=LARGE + task % 3) for task in range(30)])
    facet = await get(path, "facet", key="seed")
    page = await get(path, "rollouts", where=f"seed == {LARGE}", columns="seed")
    values = {value["value"]: (value["where"], value["rollouts"]) for value in facet["values"]}
    assert values == {str(LARGE + number): (f"seed == {LARGE + number}", 10) for number in range(3)}
    assert (facet["distinct"], facet["low"]) == (3, float(LARGE))
    assert (page["total"], page["cells"]) == (10, [[str(LARGE)]] * 10)


def test_commas_in_quoted_keys_separate_no_columns() -> None:
    assert requested('reward, row["a,b"] ,tag') == ["reward", 'row["a,b"]', "tag"]


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        ({"expected_answer": 2**53 + 1, "extracted_answer": 2**53}, [str(2**53 + 1), 2**53]),
        ({"reward_components": {f"part_{number}": number for number in range(12)}}, list(range(12))),
        ({"reward_components": {"correct": 1.0, "format": 0.1}, "expected_answer": "4"}, ["4", 1.0, 0.1]),
    ],
)
def test_the_verdict_has_every_part_of_the_reward_and_all_digits(fields: dict[str, Any], values: list[Any]) -> None:
    assert [value.value for value in verdict_of(fields)] == values


async def test_no_key_of_a_row_makes_other_expressions_invalid(tmp_path: Path) -> None:
    keys = ['a "b"', "a\\", "nul\0", "class", "k" * 5000]
    index = open_index(write(tmp_path / "x.jsonl", [row(0, 0, 1.0, **dict.fromkeys(keys, 1))]))
    client = viewer_client(index, field_router(index.find))
    assert await get(client, "expression", text="reward < 1") == NOTHING_WRONG
    for path in [known["path"] for known in (await get(client, "keys"))["keys"]]:
        assert await get(client, "expression", text=f"{path} != null") == NOTHING_WRONG
        await get(client, "facet", key=path)
        page = await get(client, "rollouts", sort=f"-{path}", columns=path)
        assert [column["path"] for column in page["columns"]] == [path]


@pytest.mark.parametrize("others", [[2.0], ["text", float("nan")], list(range(30))])
async def test_infinite_numbers_are_values_of_their_own(tmp_path: Path, others: list[Any]) -> None:
    # Python and NeMo Gym write them as Infinity, which orjson cannot.
    values = [float("inf"), float("-inf"), float("inf"), *others]
    path = tmp_path / "inf.jsonl"
    path.write_text("".join(f"{json.dumps(row(at, 0, 1.0, x=value))}\n" for at, value in enumerate(values)))
    facet = await get(path, "facet", key="x")
    assert sum(one["rollouts"] for one in facet["histogram"]) in (0, len(others))
